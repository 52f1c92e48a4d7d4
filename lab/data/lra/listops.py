"""ListOps (Nangia and Bowman 2018) at the lengths of Long Range Arena: values, generator, files, rows.

An expression is a sequence of numbers of SYMBOLS without round brackets: `[MAX 2 [SM 7 8 ] ]`. The files are
basic_{train,val,test}.tsv as published.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import BinaryIO

import numpy as np

from lab.data.lra import writing
from lab.data.lra.writing import END, FIRST, SplitRecord
from lab.errors import UserError

OPERATORS = ("[MIN", "[MAX", "[MED", "[SM")
SYMBOLS = (*(str(digit) for digit in range(10)), *OPERATORS, "]")
NUMBERS = {symbol: number for number, symbol in enumerate(SYMBOLS)}
MIN, MAX, MED, SM, CLOSE = range(10, 15)

DEEPEST = 10
"""The depth at which every node is a digit; the root has depth 1."""

OPERATOR_SHARE = 0.25
FEWEST_ARGUMENTS = 2
MOST_ARGUMENTS = 10
SHORTEST = 501
LONGEST = 1_999
BLOCK = 1_000
"""Expressions that one seed draws."""

FILES = {"basic_train.tsv": "train", "basic_val.tsv": "valid", "basic_test.tsv": "test"}
HEADER = ["Source", "Target"]
OLD_PREPARATION = (
    "lacks closing brackets: the old preparation dropped them, and its expressions no longer have a value; "
    "get the original basic_*.tsv, or use --generate"
)


def apply(operator: int, values: list[int]) -> int:
    """The value of an operator node; the median of an even count is the middle's mean, rounded down."""
    if operator == MIN:
        return min(values)
    if operator == MAX:
        return max(values)
    if operator == SM:
        return sum(values) % 10
    values = sorted(values)
    half = len(values) // 2
    return values[half] if len(values) % 2 else (values[half - 1] + values[half]) // 2


def evaluate(expression: Iterable[int]) -> int:
    """The value of an expression; ValueError if its brackets do not match."""
    frames: list[tuple[int, list[int]]] = [(CLOSE, [])]
    for symbol in expression:
        if symbol < MIN:
            frames[-1][1].append(symbol)
        elif symbol < CLOSE:
            frames.append((symbol, []))
        else:
            operator, values = frames.pop()
            if not frames or not values:
                raise ValueError("a closing bracket has no operator or no arguments")
            frames[-1][1].append(apply(operator, values))
    if len(frames) != 1 or len(frames[0][1]) != 1:
        raise ValueError("the brackets do not match")
    return frames[0][1][0]


class _TooLong(Exception):
    """The expression being drawn exceeds the longest length kept."""


class Generator:
    """The benchmark's distribution of expressions, from a source of random numbers.

    Only `random()` is drawn from, whose sequence Python promises never to change.
    """

    def __init__(self, random: Random) -> None:
        self._random = random.random
        self._symbols = bytearray()

    def draw(self) -> tuple[bytes, int]:
        """The next expression of 501 to 1,999 symbols, and its value."""
        while True:
            self._symbols.clear()
            if self._random() >= OPERATOR_SHARE:
                continue  # the root is a digit: far too short
            try:
                value = self._operator_node(1)
            except _TooLong:
                continue
            if len(self._symbols) >= SHORTEST:
                return bytes(self._symbols), value

    def _operator_node(self, depth: int) -> int:
        """Append an operator node; returns its value. Its operator is drawn after its arguments."""
        random, symbols = self._random, self._symbols
        start = len(symbols)
        symbols.append(CLOSE)
        values = []
        for _ in range(FEWEST_ARGUMENTS + int(random() * (MOST_ARGUMENTS - FEWEST_ARGUMENTS + 1))):
            if depth + 1 < DEEPEST and random() < OPERATOR_SHARE:
                values.append(self._operator_node(depth + 1))
            else:
                digit = int(random() * 10)
                symbols.append(digit)
                values.append(digit)
        symbols.append(CLOSE)
        if len(symbols) > LONGEST:
            raise _TooLong
        operator = MIN + int(random() * len(OPERATORS))
        symbols[start] = operator
        return apply(operator, values)


def draw_block(seed: int, number: int) -> dict[str, np.ndarray]:
    """BLOCK expressions: `symbols` uint8, all in a row, `lengths` and `values` of shape (BLOCK,)."""
    generator = Generator(Random(f"ListOps {seed} {number}"))
    expressions, values = zip(*(generator.draw() for _ in range(BLOCK)), strict=True)
    return {
        "symbols": np.frombuffer(b"".join(expressions), dtype=np.uint8),
        "lengths": np.array([len(expression) for expression in expressions]),
        "values": np.array(values),
    }


class ListOpsRows:
    """Expressions to rows of dictionary indices, cut to `length`."""

    def __init__(self, length: int, close_brackets: bool, end_token: bool) -> None:
        self.length = length
        self.close_brackets = close_brackets
        self.end_token = end_token

    def encode(self, expression: np.ndarray) -> np.ndarray:
        """The row of an expression given as numbers of SYMBOLS."""
        if not self.close_brackets:
            expression = expression[expression != CLOSE]
        row = expression[: self.length - self.end_token].astype(np.int64) + FIRST
        return np.append(row, END) if self.end_token else row

    def finish(self, folder: Path, stems: Sequence[str], counted: Sequence[str]) -> int:
        """Write dict.txt with the counts in the files `counted`; returns its size."""
        symbols = SYMBOLS if self.close_brackets else SYMBOLS[:CLOSE]
        counts = writing.count_tokens(folder, counted)[FIRST : FIRST + len(symbols)]
        return writing.write_dictionary(folder, symbols, counts.tolist())


def write_generated(
    folder: Path, sizes: dict[str, int], blocks: Iterable[dict[str, np.ndarray]], rows: ListOpsRows
) -> dict[str, SplitRecord]:
    """Write splits of the given sizes, in the order of drawing, from the blocks of the generator."""
    examples = ((value, rows.encode(expression)) for value, expression in unique_expressions(blocks))
    return {
        split: writing.write_examples(
            folder, split, ["input0"], itertools.islice(examples, size), "expressions"
        )
        for split, size in sizes.items()
    }


def unique_expressions(blocks: Iterable[dict[str, np.ndarray]]) -> Iterator[tuple[int, np.ndarray]]:
    """The values and expressions of all blocks, each expression once."""
    seen = set()
    for block in blocks:
        expressions = np.split(block["symbols"], np.cumsum(block["lengths"])[:-1])
        for expression, value in zip(expressions, block["values"].tolist(), strict=True):
            before = len(seen)
            seen.add(expression.tobytes())
            if len(seen) > before:
                yield value, expression


def read_expressions(name: str, content: BinaryIO) -> Iterator[tuple[int, np.ndarray]]:
    """Value and expression of each row; each expression is evaluated and must have its target's value.

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
            raise UserError(f"{place} is not an expression ({error}); get the file again") from None
        if value != int(target):
            raise UserError(f"{place} has the value {value}, not its target {target}; get the file again")
        yield value, expression


def _check_header(name: str, cells: list[str]) -> None:
    if cells == HEADER[::-1]:
        raise UserError(f"{name} has its columns swapped (Target before Source); get the original file")
    if cells != HEADER:
        raise UserError(f"{name} is not a file of ListOps: it does not begin with Source, tab, Target")


def _parse(place: str, text: str) -> np.ndarray:
    """Numbers of SYMBOLS, uint8 of shape (length,), round brackets left out."""
    words = [word for word in text.split() if word not in ("(", ")")]
    if len(words) == 1 and words[0].isdigit():
        raise UserError(f"{place} has its columns swapped (a digit where the expression should be)")
    if len(words) > 1 and "]" not in words:
        raise UserError(f"{place} {OLD_PREPARATION}")
    unknown = next((word for word in words if word not in NUMBERS), None)
    if unknown is not None or not words or NUMBERS[words[0]] < MIN:
        raise UserError(f"{place} is not an expression (at {(unknown or text)[:20]!r}); get the file again")
    return np.array([NUMBERS[word] for word in words], dtype=np.uint8)
