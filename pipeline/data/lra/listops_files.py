"""ListOps: basic_{train,val,test}.tsv as published, or drawn by our generator, to rows of tokens."""

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import BinaryIO

import numpy as np

from pipeline.data.lra import writing
from pipeline.data.lra.listops import CLOSE, MIN, SYMBOLS, evaluate
from pipeline.data.lra.sources import Source
from pipeline.data.lra.symbols import END, FIRST
from pipeline.data.lra.writing import SplitRecord, TokenSplit
from pipeline.data.preparation import SPLITS, Workplace
from pipeline.errors import UserError

FILES = {"basic_train.tsv": "train", "basic_val.tsv": "valid", "basic_test.tsv": "test"}
HEADER = ["Source", "Target"]
NUMBERS = {symbol: number for number, symbol in enumerate(SYMBOLS)}
OLD_PREPARATION = (
    "has no closing brackets: it is the old preparation, which dropped them, and its expressions have no "
    "value any more; get the original basic_*.tsv, or use --generate"
)


class ListOpsRows:
    """Expressions to rows of dictionary indices, cut to `length`."""

    def __init__(self, length: int, close_brackets: bool, end_token: bool) -> None:
        self.length = length
        self.close_brackets = close_brackets
        self.end_token = end_token

    @property
    def symbols(self) -> tuple[str, ...]:
        """What dict.txt holds."""
        return SYMBOLS if self.close_brackets else SYMBOLS[:CLOSE]

    def encode(self, expression: np.ndarray) -> np.ndarray:
        """The row of an expression given as numbers of SYMBOLS."""
        if not self.close_brackets:
            expression = expression[expression != CLOSE]
        row = expression[: self.length - self.end_token].astype(np.int64) + FIRST
        return np.append(row, END) if self.end_token else row

    def finish(self, folder: Path) -> int:
        """Write dict.txt; returns its size."""
        counts = writing.count_tokens(folder, ["train.input0"])[FIRST : FIRST + len(self.symbols)]
        return writing.write_dictionary(folder, self.symbols, counts.tolist())


Expressions = Iterable[tuple[np.ndarray, int]]
"""Numbers of SYMBOLS, and the value."""


def write_listops(source: Source, place: Workplace, rows: ListOpsRows) -> dict[str, SplitRecord]:
    """Write the splits of the published files; UserError names file and line of what is wrong."""
    records = {}
    for path, content in source.files(_is_listops):
        split = FILES[path.name]
        if split in records:
            raise UserError(f"{source.path} holds two files {path.name}; name the folder of one with --from")
        records[split] = _write_split(place, split, read_expressions(path.name, content), rows)
    for name, split in FILES.items():
        if split not in records:
            raise source.missing(name)
        if not records[split].labels:
            raise UserError(f"{source.path}: {name} holds no expressions; get it again")
    return {split: records[split] for split in SPLITS}


def write_generated(
    place: Workplace, sizes: dict[str, int], blocks: Iterable[dict[str, np.ndarray]], rows: ListOpsRows
) -> dict[str, SplitRecord]:
    """Write splits of the given sizes, in the order of drawing, from the blocks of the generator."""
    expressions = unique_expressions(blocks)
    return {
        split: _write_split(place, split, itertools.islice(expressions, size), rows)
        for split, size in sizes.items()
    }


def unique_expressions(blocks: Iterable[dict[str, np.ndarray]]) -> Iterator[tuple[np.ndarray, int]]:
    """The expressions of all blocks, each once."""
    seen = set()
    for block in blocks:
        expressions = np.split(block["symbols"], np.cumsum(block["lengths"])[:-1])
        for expression, value in zip(expressions, block["values"].tolist(), strict=True):
            before = len(seen)
            seen.add(expression.tobytes())
            if len(seen) > before:
                yield expression, value


def _is_listops(path: PurePosixPath) -> bool:
    return path.name in FILES


def _write_split(place: Workplace, split: str, expressions: Expressions, rows: ListOpsRows) -> SplitRecord:
    with TokenSplit(place.folder, split, ["input0"]) as writer:
        for number, (expression, value) in enumerate(expressions, 1):
            writer.add(value, rows.encode(expression))
            if number % 20_000 == 0:
                print(f"  {split}: {number:,} expressions", flush=True)
    return writer.record


def read_expressions(name: str, content: BinaryIO) -> Iterator[tuple[np.ndarray, int]]:
    """Expression and value of each row; each expression is evaluated and must have its target's value.

    UserError for swapped columns, missing closing brackets, a target out of range, and what cannot be
    parsed.
    """
    for number, line in enumerate(content, 1):
        cells = line.decode(errors="replace").rstrip("\r\n").split("\t")
        if number == 1:
            _check_header(name, cells)
            continue
        place = f"{name}, line {number},"
        if len(cells) != len(HEADER):
            raise UserError(f"{place} has {len(cells)} columns instead of Source and Target; get it again")
        expression, target = _parse(place, cells[0]), cells[1].strip()
        if not (target.isascii() and target.isdigit() and int(target) < 10):
            raise UserError(f"{place} has the target {target[:20]!r}, which is out of range (0 to 9)")
        try:
            value = evaluate(expression.tolist())
        except ValueError as error:
            raise UserError(f"{place} is no expression ({error}); get the file again") from None
        if value != int(target):
            raise UserError(f"{place} has the value {value}, not its target {target}; get the file again")
        yield expression, value


def _check_header(name: str, cells: list[str]) -> None:
    if cells == HEADER[::-1]:
        raise UserError(f"{name} has its columns swapped (Target before Source); get the original file")
    if cells != HEADER:
        raise UserError(f"{name} does not begin with the line Source, tab, Target; it is no file of ListOps'")


def _parse(place: str, text: str) -> np.ndarray:
    """Numbers of SYMBOLS, uint8 of shape (length,), round brackets left out."""
    words = [word for word in text.split() if word not in ("(", ")")]
    if len(words) == 1 and words[0].isdigit():
        raise UserError(f"{place} has its columns swapped (a digit where the expression should be)")
    if len(words) > 1 and "]" not in words:
        raise UserError(f"{place} {OLD_PREPARATION}")
    unknown = next((word for word in words if word not in NUMBERS), None)
    if unknown is not None or not words or NUMBERS[words[0]] < MIN:
        raise UserError(f"{place} is no expression (at {(unknown or text)[:20]!r}); get the file again")
    return np.array([NUMBERS[word] for word in words], dtype=np.uint8)
