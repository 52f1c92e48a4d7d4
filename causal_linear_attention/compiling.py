"""Marks for torch.compile, set without loading the compiler."""

from collections.abc import Callable
from typing import TypeVar

Function = TypeVar("Function", bound=Callable)


def assume_constant_result(function: Function) -> Function:
    """As `torch.compiler.assume_constant_result`, which loads `torch._dynamo` (a second) to set this mark."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function
