"""A prepared folder's files: rows of tokens, pixels, labels, dictionary and manifest."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
import torch

from lab.data.lra.tasks import LraTask, TaskFiles
from lab.data.preparation import begin_bytes, row_writer, save_array, write_manifest
from lab.data.prepared import SPLITS
from lab.data.tokenization import SPECIAL_SYMBOLS
from lab.errors import UserError

TOKEN_TYPE = np.uint16
"""The type in which fairseq stores numbers of a dictionary of less than 65,500 entries."""

MOST_ENTRIES = 65_000
FIRST = len(SPECIAL_SYMBOLS)
"""The dictionary index of the first symbol."""

END = SPECIAL_SYMBOLS.index("</s>")
UNKNOWN = SPECIAL_SYMBOLS.index("<unk>")
EXAMPLES_BETWEEN_REPORTS = 20_000


@dataclass
class SplitRecord:
    """The labels and lengths of a split's rows."""

    labels: list[int] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)


Example = tuple[int, *tuple[np.ndarray, ...]]
"""A label, and a row of dictionary indices, integers of shape (length,), for each input."""


class Symbols(Protocol):
    """A way to write the inputs of a task as rows of dictionary indices."""

    def encode(self, given: Any) -> np.ndarray:
        """The row of a UTF-8 text, or of an expression of ListOps, cut to the task's length: (length,)."""

    def finish(self, folder: Path, stems: Sequence[str], counted: Sequence[str]) -> int:
        """Write dict.txt with the counts in the files `counted` of `stems`; returns its size."""


def write_examples(
    folder: Path, split: str, inputs: Sequence[str], examples: Iterable[Example], unit: str
) -> SplitRecord:
    """Write the inputs and labels of one split; `unit` names the examples, in the plural."""
    record = SplitRecord()
    with ExitStack() as stack:
        writers = [
            stack.enter_context(row_writer(folder / f"{split}.{name}", MOST_ENTRIES)) for name in inputs
        ]
        for number, (label, *rows) in enumerate(examples, 1):
            for add, row in zip(writers, rows, strict=True):
                add(torch.from_numpy(row))
                record.lengths.append(len(row))
            record.labels.append(label)
            if number % EXAMPLES_BETWEEN_REPORTS == 0:
                print(f"  {split}: {number:,} {unit}", flush=True)
    save_array(folder / f"{split}.label.npy", np.array(record.labels, np.int64))
    return record


def write_files(
    source: TaskFiles,
    folder: Path,
    files: Mapping[str, str],
    read: Callable[[str, BinaryIO], Iterable[tuple]],
    symbols: Symbols,
    unit: str,
) -> dict[str, SplitRecord]:
    """Write the splits of a task that has one file for each: `files` maps their names to the splits.

    `read` gets name and content and yields examples: a label, and a row of the `symbols` for each input.
    UserError for a file that is missing, there twice, or empty.
    """
    records = {}
    for path, content in source.files(lambda path: path.name in files):
        split = files[path.name]
        if split in records:
            raise UserError(f"{source.path} holds two files {path.name}; name the folder of one with --from")
        examples = ((label, *map(symbols.encode, given)) for label, *given in read(path.name, content))
        records[split] = write_examples(folder, split, source.task.inputs, examples, unit)
    for name, split in files.items():
        if split not in records:
            raise source.missing(name)
        if not records[split].labels:
            raise UserError(f"{source.path}: {name} holds no {unit}; get it again")
    return {split: records[split] for split in SPLITS}


def write_pixels(
    folder: Path, split: str, size: int, images: Iterable[tuple[int, np.ndarray]], length: int
) -> SplitRecord:
    """Write SPLIT.pixels.npy and SPLIT.label.npy from the next `size` labels and images.

    An image is uint8 of `length` elements in any shape.
    """
    labels = []
    with (folder / f"{split}.pixels.npy").open("wb") as file:
        begin_bytes(file, (size, length))
        for label, image in islice(images, size):
            file.write(image.tobytes())
            labels.append(int(label))
    save_array(folder / f"{split}.label.npy", np.array(labels, np.int64))
    return SplitRecord(labels, [length] * size)


def count_tokens(folder: Path, stems: Iterable[str]) -> np.ndarray:
    """How often each dictionary index occurs in the given STEM.bin, shape (entries,)."""
    total = np.zeros(MOST_ENTRIES, dtype=np.int64)
    for stem in stems:
        if tokens := _tokens(folder, stem, "r"):
            total += np.bincount(tokens[0], minlength=MOST_ENTRIES)
    return total


def replace_tokens(folder: Path, stems: Iterable[str], table: np.ndarray) -> None:
    """Replace each index i in the given STEM.bin by `table[i]`."""
    for stem in stems:
        for tokens in _tokens(folder, stem, "r+"):
            tokens[:] = table[tokens]
            tokens.flush()


def _tokens(folder: Path, stem: str, mode: str) -> list[np.ndarray]:
    """The tokens of STEM.bin as an array on the disk; none of an empty file, which cannot be mapped."""
    path = folder / f"{stem}.bin"
    return [np.memmap(path, TOKEN_TYPE, mode)] if path.stat().st_size else []


def write_dictionary(folder: Path, symbols: Sequence[str], counts: Sequence[int]) -> int:
    """Write dict.txt in fairseq's form; returns the size with fairseq's own symbols."""
    lines = (f"{symbol} {count}\n" for symbol, count in zip(symbols, counts, strict=True))
    (folder / "dict.txt").write_text("".join(lines), encoding="utf-8")
    return FIRST + len(symbols)


def write_description(
    folder: Path, task: LraTask, splits: dict[str, SplitRecord], settings: dict[str, Any]
) -> dict:
    """Write preparation.json; `settings` are its keys that describe how the folder was made."""
    manifest = {
        "corpus": f"Long Range Arena, {task.name}",
        "task": task.name,
        "inputs": list(task.inputs),
        "classes": list(task.classes),
        **settings,
        "splits": {name: _split_entry(task, record) for name, record in splits.items()},
    }
    return write_manifest(folder, manifest)


def _split_entry(task: LraTask, record: SplitRecord) -> dict[str, Any]:
    counts = Counter(record.labels)
    return {
        "examples": len(record.labels),
        "classes": {name: counts[label] for label, name in enumerate(task.classes)},
        "shortest": min(record.lengths),
        "longest": max(record.lengths),
        "mean_length": round(sum(record.lengths) / len(record.lengths), 1),
    }
