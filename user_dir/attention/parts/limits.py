"""Limits of a mechanism's options and of the length of a sequence, with their messages."""

import math
from dataclasses import fields
from typing import get_args

from torch import Tensor

from ...errors import UserError


def check_count(option: str, value: int, longest: int | None = None, even: bool = False) -> None:
    """Raises UserError unless `value` lies between 1 and `longest`, the model's longest sequence, if any."""
    allowed = "an even number from 2" if even else "a number from 1"
    allowed += " up" if longest is None else f" to {longest}, the longest sequence of the model"
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UserError(f"{option} is {value!r}; it must be {allowed}")
    if (longest is not None and value > longest) or (even and value % 2):
        raise UserError(f"{option} is {value}; it must be {allowed}")


LARGEST_SIZE = 2**14
KINDS = {int: "a whole number", float: "a finite number", bool: "True or False", str: "a word"}


def check_types(name: str, options: type, given: dict[str, object]) -> None:
    """Raises UserError if a `given` option of `name` has another type than in the dataclass `options`."""
    for f in fields(options):
        kinds = get_args(f.type) or (f.type,)
        if f.name in given and not any(_is_a(given[f.name], kind) for kind in kinds):
            allowed = " or ".join(KINDS.get(kind, "None") for kind in kinds)
            raise UserError(
                f"the option {f.name!r} of {name!r} attention is {given[f.name]!r}; it must be {allowed}"
            )


def check_sizes(name: str, options: type, given: dict[str, object], longest: int | None) -> None:
    """Raises UserError for a `given` number of positions, or another size, beyond any sequence.

    A block may be longer than `longest`, the model's longest sequence: streams of carried state are, too.
    Options whose metadata say `"size": False` are not sizes.
    """
    limit = max(LARGEST_SIZE, longest or 0)
    for f in fields(options):
        value = given.get(f.name)
        if isinstance(value, int) and value > limit and f.metadata.get("size", True):
            flag = f"--{name}-{f.name}".replace("_", "-")
            raise UserError(f"{flag} is {value}; it must be {limit} or less, of which tables are made")


def _is_a(value: object, kind: type) -> bool:
    if kind in (int, float) and isinstance(value, bool):
        return False
    if kind is float:
        return isinstance(value, int | float) and math.isfinite(value)
    return isinstance(value, kind)


def needed_length(name: str, longest: int | None) -> int:
    """`longest`, for mechanisms whose parameters or buffers depend on it; raises UserError without one."""
    if longest is None:
        raise UserError(
            f"{name!r} attention depends on the longest sequence of the model; give it (max_positions)"
        )
    return longest


def check_length(name: str, length: int, padding_mask: Tensor | None, longest: int) -> None:
    """Raises UserError for a row with more than `longest` real positions; padding may reach further."""
    if length <= longest:
        return
    if padding_mask is not None:
        length = int((~padding_mask).sum(1).max())
    if length > longest:
        raise UserError(
            f"a sequence of {length} tokens is longer than the {longest} positions of {name!r} attention; "
            "shorten it (--tokens-per-sample) or train with a larger --max-positions"
        )
