"""GLUE's tasks for fine-tuning RoBERTa models: checked, encoded with the model's tokeniser, binarised."""

import functools
import gzip
import hashlib
import json
import os
import shutil
import zlib
from argparse import Namespace
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from fairseq.data import Dictionary

from lab.data.preparation import check_accepted, numbered, prepare_once, write_manifest, write_rows
from lab.data.prepared import DICTIONARY, read_manifest
from lab.data.tokenization import TextEncoder, encode_all, tokenizer_fingerprint, worker_count
from lab.errors import UserError
from lab.files import check_output_folder
from lab.glue_tasks import TASKS, GlueTask, glue_task

# The files of a GLUE task and their contents.
#
# They are tab-separated without any quoting: sentences hold unbalanced double quotes, at which a
# reader of CSV merges rows. Columns are found by their header.

ENDINGS = (".tsv", ".tsv.gz")
SAMPLES = (".sample.json", ".sample.json.gz", ".kshot.tsv", ".kshot.tsv.gz")
"""Parts of a train file, in the order of preference; parts of one kind belong together."""

MSR_FILES = {"train": "msr_paraphrase_train.txt", "test": "msr_paraphrase_test.txt"}
"""MRPC as Microsoft published it; GLUE's dev split is the pairs of its train file in `DEV_IDS`."""
DEV_IDS = ("mrpc_dev_ids", "dev_ids")
"""Its name in data-prep/sources.json, and the one that download scripts give it."""

PAIR_IDS = ("#1 ID", "#2 ID")
SAMPLE_KEYS = ("text_a", "text_b", "label")


@dataclass(frozen=True)
class SplitSource:
    """Where a split is: a whole file, or the pairs of MRPC whose ids are (or are not) in a set."""

    path: Path
    ids: frozenset[tuple[str, str]] = frozenset()
    inside: bool = False


@dataclass
class Examples:
    """A split as read; `labels` is None in a test split, whose labels are not published."""

    source: Path
    sha256: str = ""
    sentences: list[tuple[str, ...]] = field(default_factory=list)
    labels: list[str] | None = None
    broken_rows: int = 0
    empty_sentences: int = 0


def find_sources(folder: Path, task: GlueTask, partial: bool) -> dict[str, SplitSource]:
    """The file of each split; test may be missing, dev splits only if `partial`, which takes samples too."""
    found = {split: _first(folder, stem, ENDINGS) for split, stem in task.files.items()}
    sources = {split: SplitSource(path) for split, path in found.items() if path}
    if "train" not in sources and task.name == "MRPC":
        sources |= _msr_sources(folder)
    if "train" not in sources and partial:
        sources |= _samples(folder, "valid" in sources)
    needed = [split for split in task.files if not split.startswith("test")]
    if partial:
        needed = ["train", "valid"]
    for split in needed:
        if split not in sources:
            more = "" if partial else "; with --partial a sample of it, or a dev split less, will do"
            raise UserError(f"{folder} holds no {task.files[split]}.tsv (or .tsv.gz){more}")
    return sources


def _first(folder: Path, stem: str, endings: tuple[str, ...]) -> Path | None:
    paths = [folder / f"{stem}{ending}" for ending in endings]
    return next((path for path in paths if path.is_file()), None)


def _msr_sources(folder: Path) -> dict[str, SplitSource]:
    files = {split: _first(folder, name, ("", ".gz")) for split, name in MSR_FILES.items()}
    if files["train"] is None:
        return {}
    ids = next(filter(None, (_first(folder, stem, ENDINGS) for stem in DEV_IDS)), None)
    if ids is None:
        raise UserError(
            f"{folder} holds no {DEV_IDS[0]}.tsv, which says what of {files['train'].name} is dev"
        )
    pairs = frozenset(tuple(line.split("\t")[:2]) for _, line in LineReader(ids).lines())
    sources = {
        "train": SplitSource(files["train"], pairs),
        "valid": SplitSource(files["train"], pairs, inside=True),
    }
    return sources | ({"test": SplitSource(files["test"])} if files["test"] else {})


def _samples(folder: Path, has_valid: bool) -> dict[str, SplitSource]:
    for ending in SAMPLES:
        train, dev = folder / f"train{ending}", folder / f"dev{ending}"
        if train.is_file() and (has_valid or dev.is_file()):
            return {"train": SplitSource(train)} | ({} if has_valid else {"valid": SplitSource(dev)})
    return {}


def read_examples(source: SplitSource, task: GlueTask, split: str) -> Examples:
    """The examples of a split; a UserError names file and line."""
    labelled = not split.startswith("test")
    examples = Examples(source.path, labels=[] if labelled else None)
    reader = LineReader(source.path)
    if ".json" in source.path.suffixes:
        rows = _sample_rows(reader)
    else:
        rows = _table_rows(reader, source, task, examples)
    for place, sentences, label in rows:
        sentences = tuple(sentence.strip() for sentence in sentences)
        if not all(sentences):
            examples.empty_sentences += 1
            if not task.drops_broken_rows:
                raise UserError(f"{place} has an empty sentence; correct it")
        examples.sentences.append(sentences)
        if labelled:
            _check_label(label, task, place)
            examples.labels.append(label)
    examples.sha256 = reader.sha256.hexdigest()
    return examples


def file_sha256(path: Path) -> str:
    """The sha256 of a file, unpacked, as `read_examples` notes it."""
    reader = LineReader(path)
    for _ in reader.lines():
        pass
    return reader.sha256.hexdigest()


def _check_label(label: str, task: GlueTask, place: str) -> None:
    if not task.is_regression:
        if label not in task.labels:
            raise UserError(f"{place} has the label {label!r}; {task.name} has {', '.join(task.labels)}")
        return
    try:
        good = 0 <= float(label) <= task.highest_score
    except ValueError:
        good = False
    if not good:
        raise UserError(
            f"{place} has the score {label!r}; {task.name} has numbers from 0 to {task.highest_score:g}"
        )


def _table_rows(
    reader: "LineReader", source: SplitSource, task: GlueTask, examples: Examples
) -> Iterator[tuple[str, list[str], str]]:
    """Each row: its place, its sentences and its label (empty in a test split)."""
    labelled = examples.labels is not None
    rows = ((number, line.split("\t")) for number, line in reader.lines())
    header = task.columns if labelled else ()
    if not header:
        _, header = next(rows, (1, []))
    names = [*task.sentences, *([task.label] if labelled else []), *(PAIR_IDS if source.ids else ())]
    missing = [name for name in names if name not in header]
    if missing:
        raise UserError(
            f"{source.path}, line 1, has no column {missing[0]!r}; {task.name} needs {', '.join(names)}"
        )
    positions = [header.index(name) for name in names]
    count = len(task.sentences)
    for number, cells in rows:
        if len(cells) != len(header):
            if not task.drops_broken_rows:
                raise UserError(
                    f"{source.path}, line {number}, has {len(cells)} columns instead of {len(header)}"
                )
            examples.broken_rows += 1
            continue
        picked = [cells[position] for position in positions]
        if source.ids and (tuple(picked[-2:]) in source.ids) != source.inside:
            continue
        yield f"{source.path}, line {number},", picked[:count], picked[count] if labelled else ""


def _sample_rows(reader: "LineReader") -> Iterator[tuple[str, list[str], str]]:
    """The rows of one JSON object, {"0": {"text_a": …, "text_b": …, "label": …}, …}."""
    text = "\n".join(line for _, line in reader.lines())
    try:
        rows = {key: [row[name] for name in SAMPLE_KEYS] for key, row in json.loads(text).items()}
        sound = all(isinstance(value, str) for row in rows.values() for value in row)
    except (ValueError, KeyError, TypeError, AttributeError):
        sound = False
    if not sound:
        raise UserError(f"{reader.path} is not a sample of a GLUE task; get it again")
    for key, (*sentences, label) in rows.items():
        yield f"{reader.path}, entry {key},", sentences, label


class LineReader:
    """Reads a file, packed or not, once, hashing the unpacked content."""

    def __init__(self, path: Path):
        self.path = path
        self.sha256 = hashlib.sha256()

    def lines(self) -> Iterator[tuple[int, str]]:
        """Numbered lines without their ends and without a byte order mark."""
        number = 0
        try:
            with gzip.open(self.path) if self.path.suffix == ".gz" else self.path.open("rb") as stream:
                for number, content in enumerate(stream, 1):
                    self.sha256.update(content)
                    line = content.decode("utf-8-sig" if number == 1 else "utf-8")
                    yield number, line.rstrip("\r\n")
        except UnicodeDecodeError:
            raise UserError(f"{self.path}, line {number}, is not UTF-8 text") from None
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise UserError(f"{self.path} is damaged ({error}); get it again") from None


def main(arguments: Namespace) -> None:
    """Prepare the tasks, or check the existing ones."""
    check_output_folder(arguments.dest, "--dest")
    tasks = find_tasks(arguments.folder, arguments.task)
    sources = {
        task.name: find_sources(arguments.folder / task.name, task, arguments.partial) for task in tasks
    }
    arguments.tokenizer_from = Path(os.path.abspath(arguments.tokenizer_from))
    encoder = open_encoder(arguments.tokenizer_from)
    for task in tasks:
        dest, found = arguments.dest / task.name, sources[task.name]
        manifest = prepare_once(dest, functools.partial(prepare, arguments, task, found, encoder))
        check_same(manifest, arguments.tokenizer_from, dest, arguments.partial)
        check_sources(manifest, found, dest)
        print(f"{dest} is ready: {describe(manifest)}", flush=True)


def find_tasks(folder: Path, names: list[str] | None) -> list[GlueTask]:
    """The tasks asked for, or all that `folder` holds; prints which ones it lacks."""
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder; name the one with CoLA, MRPC and so on")
    tasks = [glue_task(name) for name in names or TASKS]
    missing = [task.name for task in tasks if not (folder / task.name).is_dir()]
    if missing and (names or len(missing) == len(tasks)):
        if not names:
            raise UserError(
                f"{folder} holds none of GLUE's tasks; name the folder that holds {', '.join(missing)}"
            )
        raise UserError(f"{folder} has no folder {missing[0]}; name the folder that holds it")
    if missing:
        print(f"{folder} has no {', '.join(missing)}.")
    return [task for task in tasks if task.name not in missing]


def open_encoder(folder: Path) -> TextEncoder:
    """The tokeniser of the pre-training's folder."""
    if read_manifest(folder) is None:
        raise UserError(f"--tokenizer-from: {folder} holds no prepared corpus")
    return TextEncoder.from_folder(folder)


def check_same(manifest: dict, tokenizer_from: Path, dest: Path, partial: bool) -> None:
    """UserError if the folder was prepared with other settings."""
    if manifest.get("tokenizer_fingerprint") != tokenizer_fingerprint(tokenizer_from):
        raise UserError(
            f"{dest} was not prepared with the tokeniser of {tokenizer_from}; name another "
            "--dest or move it away"
        )
    check_accepted(dest, "parts of the published files", partial or not manifest["partial"], "--partial")


def check_sources(manifest: dict, sources: dict[str, SplitSource], dest: Path) -> None:
    """UserError if the folder was made from other files."""
    for split, source in sources.items():
        made_from = manifest["splits"].get(split, {})
        if made_from.get("sha256") != file_sha256(source.path):
            name = made_from.get("file", "no file at all")
            raise UserError(
                f"{dest} was prepared with another {split} split ({name}) than {source.path}; name another "
                "--dest or move it away"
            )


def describe(manifest: dict) -> str:
    """One line, for people."""
    part = " (PARTIAL)" if manifest["partial"] else ""
    sizes = [f"{split} {entry['examples']:,}" for split, entry in manifest["splits"].items()]
    return f"{manifest['tokenizer']}, {', '.join(sizes)}{part}"


def prepare(
    arguments: Namespace,
    task: GlueTask,
    sources: dict[str, SplitSource],
    encoder: TextEncoder,
    folder: Path,
) -> dict:
    """Read and check all splits of a task, then encode and binarise them."""
    splits = {}
    for split in task.files:
        if split in sources:
            splits[split] = read_examples(sources[split], task, split)
            check_size(splits[split], task, split, arguments.partial)
    for name in (DICTIONARY, *encoder.files):
        shutil.copyfile(arguments.tokenizer_from / name, folder / name)
    dictionary = Dictionary.load(str(folder / DICTIONARY))
    entries = {}
    for split, examples in splits.items():
        print(f"{task.name}: {split}, {len(examples.sentences):,} examples ...", flush=True)
        longest = write_inputs(folder, split, examples, encoder, dictionary)
        entries[split] = split_entry(task, examples, longest)
    write_labels(folder, task, splits)
    manifest = {
        "corpus": f"GLUE {task.name}",
        "task": task.name,
        "tokenizer": encoder.name,
        "tokenizer_fingerprint": tokenizer_fingerprint(folder),
        "vocabulary": len(dictionary),
        "labels": list(task.labels),
        "metrics": list(task.metrics),
        "partial": is_partial(task, splits),
        "splits": entries,
    }
    return write_manifest(folder, manifest)


def check_size(examples: Examples, task: GlueTask, split: str, partial: bool) -> None:
    """UserError if a split is empty, or differs in size from the published one without --partial."""
    size, published = len(examples.sentences), task.sizes[split]
    if not size or (size not in published and not partial):
        expected = " or ".join(f"{number:,}" for number in published)
        raise UserError(
            f"{examples.source} has {size:,} {split} examples of {task.name} instead of {expected}; get "
            "the whole file" + (", or accept it with --partial" if size else "")
        )


def is_partial(task: GlueTask, splits: dict[str, Examples]) -> bool:
    """Whether train or a dev split is missing or not as large as published."""
    return any(
        split not in splits or len(splits[split].sentences) not in task.sizes[split]
        for split in ("train", *task.dev_splits)
    )


def split_entry(task: GlueTask, examples: Examples, longest: int) -> dict:
    """A split's entry in the manifest."""
    entry = {
        "examples": len(examples.sentences),
        "longest": longest,
        "broken_rows": examples.broken_rows,
        "empty_sentences": examples.empty_sentences,
        "file": examples.source.name,
        "sha256": examples.sha256,
    }
    if examples.labels is not None and not task.is_regression:
        counts = Counter(examples.labels)
        entry["labels"] = {label: counts[label] for label in task.labels}
    return entry


def write_inputs(
    folder: Path, split: str, examples: Examples, encoder: TextEncoder, dictionary: Dictionary
) -> int:
    """Write input0 and input1; returns the tokens of the longest `<s> a </s> </s> b </s>`."""
    lengths = [0] * len(examples.sentences)
    for number, sentences in enumerate(zip(*examples.sentences, strict=True)):
        place = folder / f"input{number}"
        place.mkdir(exist_ok=True)
        texts = encode_all(encoder, sentences, worker_count(sum(map(len, sentences))))
        here = write_rows(place / split, known(numbered(texts, dictionary), dictionary), len(dictionary))
        lengths = [before + 1 + length for before, length in zip(lengths, here, strict=True)]
        shutil.copyfile(folder / DICTIONARY, place / DICTIONARY)
    return max(lengths)


def known(rows: Iterable[torch.Tensor], dictionary: Dictionary) -> Iterator[torch.Tensor]:
    """The rows; UserError if one has an unknown token."""
    for row in rows:
        if (row == dictionary.unk()).any():
            raise UserError("the tokeniser has a token that its dictionary lacks; prepare both again")
        yield row


def write_labels(folder: Path, task: GlueTask, splits: dict[str, Examples]) -> None:
    """Write the labels of all splits that have some: rows of a label and `</s>`, or scores as text."""
    place = folder / "label"
    place.mkdir()
    labelled = {split: examples.labels for split, examples in splits.items() if examples.labels is not None}
    if task.is_regression:
        for split, labels in labelled.items():
            scores = (f"{float(label) / task.highest_score}\n" for label in labels)
            (place / f"{split}.label").write_text("".join(scores))
        return
    counts = Counter(labelled["train"])
    lines = (f"{label} {counts[label]}\n" for label in task.labels)
    (place / DICTIONARY).write_text("".join(lines))
    dictionary = Dictionary.load(str(place / DICTIONARY))
    for split, labels in labelled.items():
        write_rows(place / split, numbered(labels, dictionary), len(dictionary))
