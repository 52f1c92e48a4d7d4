"""A start without what a dry run never needs, for half the CPU time."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

ONLY_FOR_SCORES = ("sklearn", "sklearn.metrics", "scipy.stats")
"""Modules that fairseq imports for functions that score what a model has predicted."""


@contextmanager
def light_start() -> Iterator[None]:
    """Within it, fairseq's import loads no library that only scores, and no garbage is collected.

    fairseq cannot score afterwards, so the process has to end with the dry run.
    """
    absent = [name for name in ONLY_FOR_SCORES if name not in sys.modules]
    collects = gc.isenabled()
    gc.disable()
    for name in absent:
        sys.modules[name] = _Unused(name)
    try:
        yield
    finally:
        for name in absent:
            del sys.modules[name]
        if collects:
            gc.enable()


class _Unused(ModuleType):
    """Has every name, for `from ... import ...`."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)
