"""Cases of a test: those that are exhaustive, and those that one test goes through.

The latter are for where a test for each would take longer to collect than to run.
"""

from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

SEED = 1234
"""The seed with which every test begins."""


def mainly(kept: Container[object], values: Iterable[object]) -> list[Any]:
    """For `parametrize`: all `values`; those that are not `kept` in the default suite are exhaustive."""
    return [x if x in kept else exhaustive(*(x if isinstance(x, tuple) else (x,))) for x in values]


def firstly(number: int, values: Iterable[object]) -> list[Any]:
    """`mainly`, of which the first `number` are kept."""
    listed = list(values)
    return mainly(listed[:number], listed)


def exhaustive(*values: object) -> Any:
    """For `parametrize`: a case that is similar to another one."""
    return pytest.param(*values, marks=pytest.mark.exhaustive)


def seed() -> None:
    """Seed the CPU and any GPUs; for each absent kind of device `torch.manual_seed` formats the stack."""
    torch.default_generator.manual_seed(SEED)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(SEED)


@contextmanager
def case(*about: object) -> Iterator[None]:
    """Begin as a separate test would; an error names its case."""
    seed()
    try:
        yield
    except Exception as error:
        error.add_note(f"in the case {', '.join(map(str, about))}")
        raise
