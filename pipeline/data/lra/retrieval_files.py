"""Pairs of papers of the ACL Anthology, the task Retrieval: new_aan_pairs.{train,eval,test}.tsv.

Five columns without header or quoting: label as a float, two ids, two texts. A reader that knows
quotes would merge rows.
"""

from collections.abc import Iterator
from typing import BinaryIO

from pipeline.data.lra.sources import Source
from pipeline.data.lra.symbols import Symbols
from pipeline.data.lra.writing import SplitRecord, TokenSplit
from pipeline.data.preparation import SPLITS, Workplace
from pipeline.errors import UserError

FILES = {
    "new_aan_pairs.train.tsv": "train",
    "new_aan_pairs.eval.tsv": "valid",
    "new_aan_pairs.test.tsv": "test",
}
COLUMNS = 5
LABELS = {b"0.0": 0, b"1.0": 1, b"0": 0, b"1": 1}


def write_retrieval(source: Source, place: Workplace, symbols: Symbols) -> dict[str, SplitRecord]:
    """Write the splits; UserError for a missing file, and with file and line for a bad row."""
    records = {}
    for path, content in source.files(lambda path: path.name in FILES):
        split = FILES[path.name]
        if split in records:
            raise UserError(f"{source.path} holds two files {path.name}; name the folder of one with --from")
        print(f"{source.task.name}: {split} ...", flush=True)
        with TokenSplit(place.folder, split, source.task.inputs) as writer:
            for number, (label, *texts) in enumerate(read_pairs(path.name, content), 1):
                writer.add(label, *map(symbols.encode, texts))
                if number % 20_000 == 0:
                    print(f"  {number:,} pairs", flush=True)
        records[split] = writer.record
    for name, split in FILES.items():
        if split not in records:
            raise source.missing(name)
        if not records[split].labels:
            raise UserError(f"{source.path}: {name} is empty; get it again")
    return {split: records[split] for split in SPLITS}


def read_pairs(name: str, content: BinaryIO) -> Iterator[tuple[int, bytes, bytes]]:
    """Label and texts of each row of a file; UserError names the file and the line of a bad one."""
    for number, line in enumerate(content, 1):
        cells = line.rstrip(b"\r\n").split(b"\t")
        if len(cells) != COLUMNS:
            raise UserError(
                f"{name}, line {number}, has {len(cells)} columns instead of {COLUMNS} (label, id, id, text, "
                "text); get the file again"
            )
        label, _, _, *texts = cells
        if label not in LABELS:
            shown = label[:20].decode(errors="replace")
            raise UserError(f"{name}, line {number}, has the label {shown!r} instead of 0.0 or 1.0")
        for text in texts:
            if not text.strip():
                raise UserError(f"{name}, line {number}, has an empty text; get the file again")
            try:
                text.decode()
            except UnicodeDecodeError:
                raise UserError(f"{name}, line {number}, is not UTF-8 text; get the file again") from None
        yield LABELS[label], *texts
