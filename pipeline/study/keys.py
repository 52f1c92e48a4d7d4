"""Keys and names in a study's YAML: a mistake ends in one line that names the nearest known one."""

from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import Any

from pipeline.errors import UserError


def nearest(word: Any, known: Collection[str]) -> str:
    """`; did you mean ...?`, or what is known."""
    close = get_close_matches(str(word), list(known), n=1, cutoff=0.5)
    return f"; did you mean {close[0]}?" if close else f"; choose from {', '.join(known)}"


def check_keys(found: Any, known: Collection[str], where: str) -> None:
    """UserError for the first key that is not known, and for what is no mapping."""
    if not isinstance(found, Mapping):
        raise UserError(f"{where}: expected keys and values, found {found!r}")
    for key in found:
        if key not in known:
            raise UserError(f"{where}: there is no key {key}{nearest(key, known)}")


def read_only(given: Any, axes: Mapping[str, Any], where: str) -> dict[str, tuple[str, ...]]:
    """The key `only`: the choices of an axis that count, one or a list."""
    check_keys(given, axes, f"{where}: only")
    found = {}
    for axis, words in given.items():
        found[axis] = tuple(map(str, words if isinstance(words, list) else [words]))
        for word in found[axis]:
            if axes[axis].closed and word not in axes[axis].choices:
                raise UserError(f"{where}: only: {axis} has no {word}{nearest(word, axes[axis].choices)}")
    return found


def positive_number(value: Any, where: str) -> int:
    """`value` as a whole number of 1 or more."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UserError(f"{where} is {value!r}; it must be a whole number of 1 or more")
    return value
