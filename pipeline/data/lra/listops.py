"""ListOps (Nangia and Bowman 2018) at the lengths of Long Range Arena: symbols, values, generator.

An expression is a sequence of numbers of SYMBOLS without round brackets: `[MAX 2 [SM 7 8 ] ]`.
"""

from collections.abc import Iterable
from random import Random

import numpy as np

OPERATORS = ("[MIN", "[MAX", "[MED", "[SM")
SYMBOLS = (*(str(digit) for digit in range(10)), *OPERATORS, "]")
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
    """The expression being drawn is longer than those that are kept."""


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
