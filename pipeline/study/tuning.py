"""Choosing a setting before the repetitions: every value is tried with the first seed, the best is taken."""

from collections.abc import Sequence
from dataclasses import replace

from pipeline.study.cells import Cell, first_seed
from pipeline.study.declaration import TUNED_BY


def tuning_cells(cell: Cell) -> list[Cell]:
    """The runs in which the setting of `cell` is chosen, of the first seed."""
    assert cell.study.tune is not None
    first = first_seed(cell)
    return [replace(cell, seed=first, tuning=value, chosen=None) for value in cell.study.tune.values]


def score_of(cell: Cell) -> float | None:
    """The best figure on valid of a tuning run; None if it is not finished, or logged none."""
    record = cell.record()
    if record is None:
        return None
    curve = "valid" if cell.study.tune.by == "valid_loss" else "valid_accuracy"
    return TUNED_BY[cell.study.tune.by](
        (value for _, value in record["training"]["curves"].get(curve, [])), default=None
    )


def best_value(cell: Cell) -> str | None:
    """The value of the tuned setting with the best score; None until all runs are finished."""
    runs = tuning_cells(cell)
    if any(one.record() is None for one in runs):
        return None
    scores = {one.tuning: score for one in runs if (score := score_of(one)) is not None}
    return TUNED_BY[cell.study.tune.by](scores, key=lambda value: scores[value]) if scores else None


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
