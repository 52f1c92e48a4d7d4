"""Tuning: the value of a setting, chosen for each row in runs of the first seed, mostly shorter ones.

Every value is tried; with `bracket` further ones follow by factors of two until the best lies inside. Only
cells with the best value are repeated. Cells that the study does not tune run as they are.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from lab.errors import UserError
from lab.publish.tables import grouped
from lab.store import Record, Tuned
from lab.study.cells import Cell
from lab.study.records import other_choices
from lab.study.schema import TUNED_BY, Tune

GROWTH = 8
"""The most values that `bracket` adds to a study's own."""


def all_runs(cells: Sequence[Cell], with_unchosen: bool = False) -> list[Cell]:
    """Tuning cells first, then the others; cells whose tuning is unfinished only `with_unchosen`."""
    tried = runs_of_tuning(cells)
    if not tried:
        return list(cells)
    chosen = with_chosen(cells)
    ready = {cell.folder for cell in chosen}
    return [*tried, *chosen, *(cell for cell in cells if with_unchosen and cell.folder not in ready)]


def runs_of_tuning(cells: Sequence[Cell]) -> list[Cell]:
    """The runs in which the setting of the cells is chosen; none if the study tunes none of them."""
    first = {tuple(cell.values.items()): cell for cell in reversed(cells) if cell.is_tuned}
    return [one for cell in reversed(first.values()) for one in tuning_cells(cell)]


def tuning_cells(cell: Cell) -> list[Cell]:
    """The runs in which the setting of `cell` is chosen, of the first seed.

    With `bracket`, once all of them are finished and the best value is the least or the largest, there is one
    more, of half or twice that value; of half the least if all have diverged. At most GROWTH in all.
    """
    tune = cell.study.tune
    assert tune is not None
    runs = _tuning_runs(cell, tune.values)
    while all(run.record() for run in runs):
        further = _further_value(tune, [run.tuning for run in runs], _scores(runs))
        if further is None:
            break
        runs += _tuning_runs(cell, [further])
    return runs


def _further_value(tune: Tune, values: Sequence[str], scores: Mapping[str, float]) -> str | None:
    """The value that `bracket` tries after these `values`, which are all finished; None if none follows."""
    if not tune.bracket or len(values) >= len(tune.values) + GROWTH:
        return None
    in_order = sorted(values, key=float)
    best = _best_of(scores, tune) if scores else in_order[0]
    if best not in (in_order[0], in_order[-1]):
        return None
    return f"{float(best) * (2 if scores and best == in_order[-1] else 0.5):g}"


def _tuning_runs(cell: Cell, values: Iterable[str]) -> list[Cell]:
    return [replace(cell, seed=cell.first_seed, tuning=value, chosen=None) for value in values]


def with_chosen(cells: Sequence[Cell]) -> list[Cell]:
    """The cells with the tuned values; those that are tuned and have no chosen value yet are left out."""
    one_of_each = {tuple(cell.values.items()): cell for cell in cells if cell.is_tuned}
    chosen = {place: best_value(cell) for place, cell in one_of_each.items()}
    return [
        replace(cell, chosen=value)
        for cell in cells
        if (value := chosen.get(tuple(cell.values.items()))) is not None or not cell.is_tuned
    ]


def best_value(cell: Cell) -> str | None:
    """The value of the tuned setting with the best score; None without any, or while a run is unfinished."""
    runs = tuning_cells(cell)
    if any(one.record() is None for one in runs) or not (scores := _scores(runs)):
        return None
    return _best_of(scores, cell.study.tune)


def refusal(cell: Cell) -> str:
    """Why a record cannot be that of the value which tuning has chosen for the cell; empty if it can."""
    if cell.chosen is None:
        return ""
    try:
        cell.record()
    except UserError as error:
        return f"its {cell.tuned_axis} is {cell.chosen} now; {error}"
    return ""


def without_score(cells: Iterable[Cell]) -> list[str]:
    """What to do about each row whose runs of tuning are finished, and none has a score."""
    rows = {tuple(cell.values.items()): tuning_cells(cell) for cell in cells if cell.is_tuned}
    return [
        f"{', '.join(runs[0].values.values())}: no run of tuning has logged a {runs[0].study.tune.by} that "
        "is a number; choose another `by`, other values or more updates"
        for runs in rows.values()
        if all(run.record() for run in runs) and not _scores(runs)
    ]


def _scores(runs: Iterable[Cell]) -> dict[str, float]:
    """The scores of the runs that have one, by the value tried."""
    return {run.tuning: score for run in runs if (score := score_of(run)) is not None}


def _best_of(scores: Mapping[str, float], tune: Tune) -> str:
    return TUNED_BY[tune.by](scores, key=scores.__getitem__)


def score_of(cell: Cell) -> float | None:
    """The best valid figure of a tuning run; None if it diverged or logged no finite number."""
    record = cell.record()
    return None if record is None else _score_in(record, cell.study.tune.by)


def _score_in(record: Record, by: str) -> float | None:
    if "diverged" in record:
        return None
    points = record["training"]["curves"].get("valid" if by == "valid_loss" else "valid_accuracy", [])
    return TUNED_BY[by](
        (value for _, value in points if value is not None and math.isfinite(value)), default=None
    )


def tried(cell: Cell) -> Tuned:
    """The values that tuning tried for a cell, and the one it chose."""
    tune, scores = cell.study.tune, {one.tuning: score_of(one) for one in tuning_cells(cell)}
    return Tuned(setting=cell.tuned_axis, chosen=cell.chosen, tried=scores, by=tune.by, updates=tune.updates)


def with_all_tried(records: Sequence[Record]) -> list[Record]:
    """The records without those of tuning, whose scores join the values that each record has tried.

    A record knows the values that were tried before it was measured; others may have followed.
    """
    row = lambda record: other_choices(record["cell"], "tuning")  # noqa: E731
    runs = grouped([one for one in records if "tuning" in one["cell"]], row)
    measured = [one for one in records if "tuning" not in one["cell"]]
    return [_with_tried(one, runs.get(row(one), [])) if "tuned" in one else one for one in measured]


def _with_tried(record: Record, runs: Iterable[Record]) -> Record:
    tuned = record["tuned"]
    scores = {value: _score_in(run, tuned["by"]) for run in runs for value in run["cell"]["tuning"].values()}
    return {**record, "tuned": {**tuned, "tried": tuned["tried"] | scores}}


def is_tuned_as_now(tune: Tune, tuned: Tuned) -> bool:
    """Whether a record has the best value of today's study, tuned by its figure, updates and values.

    Scores of values that the study no longer tries do not count.
    """
    values, tried = list(tune.values), tuned["tried"]
    same = tuned["by"] == tune.by and tuned.get("updates", tune.updates) == tune.updates
    if not same or not {*values} <= {*tried}:
        return False

    def scores() -> dict[str, float]:
        return {value: score for value in values if (score := tried[value]) is not None}

    while (further := _further_value(tune, values, scores())) in tried:
        values.append(further)
    found = scores()
    return bool(found) and found.get(tuned["chosen"]) == found[_best_of(found, tune)]
