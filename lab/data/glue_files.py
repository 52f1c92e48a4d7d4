"""The files of a GLUE task and their contents.

They are tab-separated without any quoting: sentences hold unbalanced double quotes, at which a
reader of CSV merges rows. Columns are found by their header.
"""

import gzip
import hashlib
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from lab.errors import UserError
from lab.glue_tasks import GlueTask

ENDINGS = (".tsv", ".tsv.gz")
SAMPLES = (".sample.json", ".sample.json.gz", ".kshot.tsv", ".kshot.tsv.gz")
"""Parts of a train file, in the order of preference; those of one kind are made for each other."""

MSR_FILES = {"train": "msr_paraphrase_train.txt", "test": "msr_paraphrase_test.txt"}
"""MRPC as Microsoft published it; GLUE's dev split is the pairs of its train file in dev_ids.tsv."""

PAIR_IDS = ("#1 ID", "#2 ID")
SAMPLE_KEYS = ("text_a", "text_b", "label")


@dataclass(frozen=True)
class Source:
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


def find_sources(folder: Path, task: GlueTask, partial: bool) -> dict[str, Source]:
    """The file of each split; test may be missing, dev splits only if `partial`, which takes samples too."""
    found = {split: _first(folder, stem, ENDINGS) for split, stem in task.files.items()}
    sources = {split: Source(path) for split, path in found.items() if path}
    if "train" not in sources and task.name == "MRPC":
        sources |= _msr_sources(folder)
    if "train" not in sources and partial:
        sources |= _samples(folder, task, "valid" in sources)
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


def _msr_sources(folder: Path) -> dict[str, Source]:
    files = {split: _first(folder, name, ("", ".gz")) for split, name in MSR_FILES.items()}
    if files["train"] is None:
        return {}
    ids = _first(folder, "dev_ids", ENDINGS)
    if ids is None:
        raise UserError(f"{folder} holds no dev_ids.tsv, which says what of {files['train'].name} is dev")
    pairs = frozenset(tuple(line.split("\t")[:2]) for _, line in LineReader(ids).lines())
    sources = {"train": Source(files["train"], pairs), "valid": Source(files["train"], pairs, inside=True)}
    return sources | ({"test": Source(files["test"])} if files["test"] else {})


def _samples(folder: Path, task: GlueTask, has_valid: bool) -> dict[str, Source]:
    for ending in SAMPLES:
        train, dev = folder / f"train{ending}", folder / f"dev{ending}"
        if train.is_file() and (has_valid or dev.is_file()):
            return {"train": Source(train)} | ({} if has_valid else {"valid": Source(dev)})
    return {}


def read_examples(source: Source, task: GlueTask, split: str) -> Examples:
    """The examples of a split; UserError names file and line of what is wrong."""
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
    reader: "LineReader", source: Source, task: GlueTask, examples: Examples
) -> Iterator[tuple[str, list[str], str]]:
    """Of each row its place, its sentences and its label (empty in a test split)."""
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
        raise UserError(f"{reader.path} is no sample of a GLUE task; get it again")
    for key, (*sentences, label) in rows.items():
        yield f"{reader.path}, entry {key},", sentences, label


class LineReader:
    """Reads a file, packed or not, once, hashing what it unpacks."""

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
