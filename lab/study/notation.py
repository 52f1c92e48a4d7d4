"""What a study's YAML is written in: keys, of which a mistake ends in one line, and figures of a record.

A column or a claim asks a record for `[factor*]path`, nothing else. A path such as `bits_per_dimension.test`,
or `buckets.0.perplexity` for the first of a list, is looked up in what the evaluator found, then in the
figures of training, then in the whole record. A format is one of Python's for numbers, or `count`: in how
many records the value is true.
"""

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from lab.errors import UserError

Record = dict[str, Any]
EXPRESSION = re.compile(
    r"(?:(?P<factor>\d+(?:\.\d+)?(?:e[+-]?\d+)?)\*)?(?P<path>[A-Za-z_][\w-]*(?:\.[\w+-]+)*)"
)
FORMAT = re.compile(r",?(?:\.\d+)?[feg%]?")
COUNT = "count"
ABSENT = object()
SECTIONS = ("found", "training")


def nearest(word: Any, known: Collection[str]) -> str:
    """`; did you mean ...?`, or what is known."""
    close = get_close_matches(str(word), list(known), n=1, cutoff=0.5)
    return f"; did you mean {close[0]}?" if close else f"; choose from {', '.join(known)}"


def check_known(word: Any, known: Collection[str], said: str) -> None:
    """UserError that says `said` and the nearest name for a `word` that is not `known`."""
    if word not in known:
        raise UserError(f"{said}{nearest(word, known)}")


def check_keys(found: Any, known: Collection[str], where: str, required: Sequence[str] = ()) -> None:
    """UserError for the first key that is not known or is missing, and for what is no mapping."""
    if not isinstance(found, Mapping):
        raise UserError(f"{where}: expected keys and values, found {found!r}")
    for key in found:
        check_known(key, known, f"{where}: there is no key {key}")
    for key in required:
        if key not in found:
            raise UserError(f"{where}: {key} is missing")


def check_choice(value: Any, known: Collection[str], where: str) -> Any:
    """`value` if it is one of the `known`; UserError for anything else."""
    check_known(value, known, f"{where} is {value!r}")
    return value


def as_list(given: Any) -> list[Any]:
    """What a key has that takes one thing or a list."""
    return given if isinstance(given, list) else [given]


def read_only(given: Any, axes: Mapping[str, Any], where: str) -> dict[str, tuple[str, ...]]:
    """The key `only`: the choices of an axis that count, one or a list."""
    check_keys(given, axes, f"{where}: only")
    found = {}
    for axis, words in given.items():
        found[axis] = tuple(map(str, as_list(words)))
        for word in found[axis] if axes[axis].closed else ():
            check_known(word, axes[axis].choices, f"{where}: only: {axis} has no {word}")
    return found


def positive_number(value: Any, where: str) -> int:
    """`value` as a whole number of 1 or more."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UserError(f"{where} is {value!r}; it must be a whole number of 1 or more")
    return value


@dataclass(frozen=True)
class Expression:
    """A number of a record: the value at `path` times `factor`."""

    path: tuple[str, ...]
    factor: float | None = None

    def __call__(self, record: Record) -> Any:
        """The value, None if the record has none, or one that is no number."""
        for section in sections(record):
            value = follow(section, self.path)
            if value is not None:
                break
        if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
            return None
        return value if self.factor is None else self.factor * value


def not_measured(figure: Expression, record: Record) -> str:
    """A figure that the record of a finished cell lacks, whose it is, and the nearest one that it has."""
    path, known = ".".join(figure.path), [*record["found"], *record["training"]]
    return f"{path}, which {record['study']} has not measured{nearest(path, known)}"


def number(value: Any, where: str) -> float:
    """`value`, a number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UserError(f"{where} is {value!r}; it must be a number")
    return float(value)


def sections(record: Record) -> list[Any]:
    """Where figures are looked up, in this order."""
    return [*(record.get(name) for name in SECTIONS), record]


def follow(value: Any, path: Iterable[str], absent: Any = None) -> Any:
    """The value at a path of nested mappings and lists, `absent` if there is none."""
    for key in path:
        if isinstance(value, list) and key.isdecimal() and int(key) < len(value):
            value = value[int(key)]
        elif isinstance(value, Mapping) and key in value:
            value = value[key]
        else:
            return absent
    return value


def parse_expression(text: Any, where: str) -> Expression:
    """The expression that `text` writes; UserError, naming the place `where`, for anything else."""
    match = EXPRESSION.fullmatch(str(text))
    if not match:
        raise UserError(f"{where}: {text!r} is no expression; write a path such as accuracy, or 100*accuracy")
    factor = float(match["factor"]) if match["factor"] else None
    return Expression(tuple(match["path"].split(".")), factor)


def check_format(text: Any, where: str) -> str:
    """`text` if it is a number format or `count`; UserError for anything else."""
    if text != COUNT and not FORMAT.fullmatch(str(text)):
        raise UserError(f"{where}: {text!r} is no format; write one such as .2f, or {COUNT}")
    return str(text)


def numbers(expression: Expression, records: Iterable[Record]) -> Iterator[float]:
    """The values of the records that have one."""
    for record in records:
        if (value := expression(record)) is not None:
            yield value


def row_name(key: Sequence[str]) -> str:
    """How a claim names a row."""
    return "/".join(key)
