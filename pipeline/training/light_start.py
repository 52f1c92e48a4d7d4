"""fairseq imported in two thirds of the CPU time: without what only scores, without garbage collection."""

import gc
import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

ONLY_FOR_SCORES = ("sklearn", "sklearn.metrics", "scipy.stats")
"""Libraries whose functions fairseq imports to score what a model has predicted."""


def import_quickly(module: str) -> ModuleType:
    """Import a module that needs fairseq.

    What fairseq imports to score with is loaded when it is called. Garbage collection would take a seventh of
    the time and free nothing.
    """
    absent = [name for name in ONLY_FOR_SCORES if name not in sys.modules]
    collects = gc.isenabled()
    gc.disable()
    for name in absent:
        sys.modules[name] = _Deferred(name)
    try:
        return importlib.import_module(module)
    finally:
        for name in absent:
            del sys.modules[name]
        if collects:
            gc.enable()


class _Deferred(ModuleType):
    """A library in whose place `from ... import ...` gets functions that import it when they are called."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return sys.modules.get(f"{self.__name__}.{name}") or _deferred(self.__name__, name)


def _deferred(module: str, name: str) -> Callable[..., Any]:
    def call(*arguments: Any, **options: Any) -> Any:
        return getattr(importlib.import_module(module), name)(*arguments, **options)

    return call
