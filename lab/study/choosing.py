"""Choosing the value of a setting: before the repetitions with `tune`, or after them with `best`.

    tune: {axis: lr, values: [0.0005, 0.001], updates: 1000, by: valid_loss}
    best: {axis: lr, highest: score}

`tune` tries every value with the first seed in shorter runs, and only the best is repeated. With `best` all
choices of an axis are repeated, and the others stay in the records, not in the tables: the best has the
highest (or lowest) mean of a figure over the seeds that all have, for each choice of the other axes. Only the
weights of the best single run are kept.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lab.errors import UserError
from lab.files import shown_path
from lab.publish.tables import grouped
from lab.study.notation import (
    not_measured,
    numbers,
)
from lab.study.records import Record
from lab.study.schema import TUNED_BY, Best

if TYPE_CHECKING:
    from lab.study.cells import Cell


def best_records(best: Best | None, records: Sequence[Record]) -> list[Record]:
    """The records of the best choice, marked with what it was chosen from; all of them without `best`.

    Raises UserError where no record has the figure that decides.
    """
    if best is None:
        return list(records)
    kept = []
    for group in grouped(records, lambda record: _others(record["cell"], best.axis)).values():
        by_choice = grouped(group, lambda record: str(record["cell"][best.axis]))
        means = _means(best, by_choice)
        if means:
            chosen = max(means, key=lambda choice: means[choice])
            kept += [{**record, "best": sorted(means)} for record in by_choice[chosen]]
    if records and not kept:
        raise UserError(f"best: {best.by} is of {not_measured(best.figure, records[0])}")
    return kept


def _means(best: Best, by_choice: Mapping[str, Sequence[Record]]) -> dict[str, float]:
    """Of each choice the mean over the seeds that all choices have, or over its own if they share none."""
    values = {
        choice: {one["cell"]["seed"]: value for one in records if (value := best.figure(one)) is not None}
        for choice, records in by_choice.items()
    }
    values = {choice: by_seed for choice, by_seed in values.items() if by_seed}
    common = set.intersection(*map(set, values.values())) if values else set()
    means = {}
    for choice, by_seed in values.items():
        compared = [by_seed[seed] for seed in common or by_seed]
        means[choice] = best.order(statistics.mean(compared))
    return means


def best_note(best: Best | None, records: Sequence[Record]) -> str:
    """What the best was chosen from and by what, in a sentence; empty without it."""
    if best is None:
        return ""
    figure = ".".join(best.figure.path)
    tried = sorted({choice for record in records for choice in record["best"]})
    choice = f"the choice with the {best.by} mean {figure} over the seeds that all have"
    return f"Of {best.axis} ({', '.join(tried)}): {choice}."


def keep_best_weights(best: Best, cells: Sequence["Cell"]) -> None:
    """Where all cells are finished, remove the weights of all but the best run, and say where those are."""
    for group in grouped(cells, lambda cell: _others(cell.values, best.axis)).values():
        records = [record for cell in group if (record := cell.record())]
        scores = [best.order(value) for value in numbers(best.figure, records)]
        if len(scores) < len(group):
            continue
        chosen = group[scores.index(max(scores))]
        for cell in group:
            if cell.folder != chosen.folder:
                cell.run.keep_only(None)
        if chosen.run.is_begun:
            print(f"{chosen.name}: best weights in {shown_path(chosen.folder)}")


def _others(cell: Mapping[str, Any], axis: str) -> tuple[str, ...]:
    return tuple(str(value) for name, value in cell.items() if name not in (axis, "seed"))


def tuning_cells(cell: "Cell") -> "list[Cell]":
    """The runs in which the setting of `cell` is chosen, of the first seed."""
    assert cell.study.tune is not None
    first = cell.first_seed
    return [replace(cell, seed=first, tuning=value, chosen=None) for value in cell.study.tune.values]


def score_of(cell: "Cell") -> float | None:
    """The best figure on valid of a tuning run; None if it has diverged or has none that is a number."""
    record = cell.record()
    if record is None or "diverged" in record:
        return None
    curve = "valid" if cell.study.tune.by == "valid_loss" else "valid_accuracy"
    points = record["training"]["curves"].get(curve, [])
    return TUNED_BY[cell.study.tune.by](
        (value for _, value in points if value is not None and math.isfinite(value)), default=None
    )


def best_value(cell: "Cell") -> str | None:
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


def is_unbracketed(record: Record) -> bool:
    """Whether the record's tuned number is the least or the largest tried: a better one may lie beyond."""
    if "tuned" not in record:
        return False
    try:
        tried = sorted(map(float, record["tuned"]["tried"]))
    except ValueError:  # words have no order
        return False
    return float(record["tuned"]["chosen"]) in (tried[0], tried[-1])


def with_chosen(cells: "Sequence[Cell]") -> "list[Cell]":
    """The cells with what tuning has chosen; those for which nothing is chosen yet are left out."""
    one_of_each = {tuple(cell.values.items()): cell for cell in cells}
    chosen = {place: best_value(cell) for place, cell in one_of_each.items()}
    return [
        replace(cell, chosen=value)
        for cell in cells
        if (value := chosen[tuple(cell.values.items())]) is not None
    ]
