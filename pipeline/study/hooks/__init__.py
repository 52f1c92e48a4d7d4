"""What only some studies need, a module for each; the key `hooks` of a study names it.

A module may have `tables(study, records)`, Markdown below the tables of the page; `DRAWS`, further pictures
by their title; and `data_flags(cell)`, flags of fairseq-train that follow from the cell's prepared data.
"""

import importlib
from types import ModuleType


def hooks_of(name: str) -> ModuleType | None:
    """The module that a study names; None if it names none."""
    return importlib.import_module(f"pipeline.study.hooks.{name}") if name else None
