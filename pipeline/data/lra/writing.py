"""A prepared folder's files: rows of tokens, pixels, labels, dictionary and manifest."""

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch

from pipeline.data.indexed_rows import RowWriter
from pipeline.data.lra.tasks import LraTask
from pipeline.data.preparation import write_manifest
from pipeline.data.tokenization import SPECIAL_SYMBOLS

TOKEN_TYPE = np.uint16
"""What fairseq stores the numbers of a dictionary of less than 65,500 entries as."""

MOST_ENTRIES = 65_000


@dataclass
class SplitRecord:
    """The labels and lengths of a split's rows."""

    labels: list[int] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)


class TokenSplit:
    """Writes the inputs and labels of one split; `with TokenSplit(...) as split: split.add(...)`."""

    def __init__(self, folder: Path, split: str, inputs: Sequence[str]) -> None:
        self.folder = folder
        self.split = split
        self.writers = [RowWriter(folder / f"{split}.{name}", MOST_ENTRIES) for name in inputs]
        self.record = SplitRecord()
        self._stack = ExitStack()

    def add(self, label: int, *rows: np.ndarray) -> None:
        """Append an example: a row of dictionary indices, integers of shape (length,), for each input."""
        for writer, row in zip(self.writers, rows, strict=True):
            writer.add(torch.from_numpy(row))
            self.record.lengths.append(len(row))
        self.record.labels.append(label)

    def __enter__(self) -> "TokenSplit":
        for writer in self.writers:
            self._stack.enter_context(writer)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)
        if kind is None:
            write_labels(self.folder, self.split, self.record.labels)


def write_labels(folder: Path, split: str, labels: Sequence[int]) -> None:
    """Write SPLIT.label.npy."""
    np.save(folder / f"{split}.label.npy", np.asarray(labels, dtype=np.int64))


def write_pixels(
    folder: Path, split: str, size: int, images: Iterable[tuple[int, np.ndarray]], length: int
) -> SplitRecord:
    """Write SPLIT.pixels.npy and SPLIT.label.npy from the next `size` labels and images.

    An image is uint8 of `length` elements in any shape.
    """
    path = folder / f"{split}.pixels.npy"
    pixels = np.lib.format.open_memmap(path, "w+", np.uint8, (size, length))
    labels = []
    for row, (label, image) in zip(pixels, images, strict=False):
        row[:] = image.reshape(length)
        labels.append(int(label))
    pixels.flush()
    write_labels(folder, split, labels)
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
    return len(SPECIAL_SYMBOLS) + len(symbols)


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
