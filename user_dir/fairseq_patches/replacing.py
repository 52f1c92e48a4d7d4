"""Wrap a function of fairseq's, once, however often the plugin is loaded."""

from collections.abc import Callable
from functools import wraps
from typing import Any


def replaces(owner: Any, name: str) -> Callable[[Callable[..., Any]], None]:
    """Decorator: `owner.name(...)` becomes `function(original, ...)`.

    A function of this module and qualified name that has replaced it before is not applied again.

    Args:
        owner: the module or class that holds the original.
        name: of the original.
    """
    original = getattr(owner, name)
    applied = getattr(original, "replaced_by", ())

    def apply(function: Callable[..., Any]) -> None:
        mark = f"{function.__module__}.{function.__qualname__}"
        if mark in applied:
            return

        @wraps(original)
        def replacement(*args: Any, **kwargs: Any) -> Any:
            return function(original, *args, **kwargs)

        replacement.replaced_by = (*applied, mark)
        setattr(owner, name, replacement)

    return apply
