"""What only some studies need, a module for each; the key `hooks` of a study names it.

A module may have `tables(study, records)`, Markdown below the tables of the page; `DRAWS`, further pictures
by their title; and `data_flags(cell)`, flags of fairseq-train that follow from the cell's prepared data.
"""

import importlib
from typing import Any


def hook_of(module: str, name: str) -> Any:
    """What the module of a study has under `name`; None if it has nothing, or the study names no module."""
    return getattr(importlib.import_module(f"pipeline.study.hooks.{module}"), name, None) if module else None
