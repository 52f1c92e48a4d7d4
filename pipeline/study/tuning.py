"""Choosing a setting before the repetitions: every value is tried with the first seed, the best is taken."""

import math
from collections.abc import Sequence
from dataclasses import replace

from pipeline.errors import UserError
from pipeline.study.cells import Cell, first_seed
from pipeline.study.declaration import TUNED_BY


def tuning_cells(cell: Cell) -> list[Cell]:
    """The runs in which the setting of `cell` is chosen, of the first seed."""
    assert cell.study.tune is not None
    first = first_seed(cell)
    return [replace(cell, seed=first, tuning=value, chosen=None) for value in cell.study.tune.values]


def score_of(cell: Cell) -> float | None:
    """The best figure on valid of a tuning run; None if it has none that is a number."""
    record = cell.record()
    if record is None:
        return None
    curve = "valid" if cell.study.tune.by == "valid_loss" else "valid_accuracy"
    points = record["training"]["curves"].get(curve, [])
    return TUNED_BY[cell.study.tune.by]((value for _, value in points if math.isfinite(value)), default=None)


def best_value(cell: Cell) -> str | None:
    """The value of the tuned setting with the best score; None until all runs are finished.

    Raises UserError if none of them has a score.
    """
    runs = tuning_cells(cell)
    if any(one.record() is None for one in runs):
        return None
    scores = {one.tuning: score for one in runs if (score := score_of(one)) is not None}
    if not scores:
        raise UserError(
            f"{', '.join(cell.values.values())}: no run of tuning has logged a {cell.study.tune.by} that is "
            "a number; choose another `by`, other values or more updates"
        )
    return TUNED_BY[cell.study.tune.by](scores, key=lambda value: scores[value])


def with_chosen(cells: Sequence[Cell]) -> list[Cell]:
    """The cells with what tuning has chosen; those for which nothing is chosen yet are left out."""
    chosen = {}
    for cell in cells:
        place = tuple(cell.values.items())
        if place not in chosen:
            chosen[place] = best_value(cell)
    return [
        replace(cell, chosen=value)
        for cell in cells
        if (value := chosen[tuple(cell.values.items())]) is not None
    ]
