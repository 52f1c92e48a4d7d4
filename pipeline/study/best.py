"""The best choice of an axis, such as the learning rate: the others stay in the records, not in the tables.

    best: {axis: lr, highest: score}

The best is the choice with the highest (or lowest) mean of a figure over the seeds, for each choice of the
other axes. Only the weights of the best single run are kept.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipeline.errors import UserError
from pipeline.files import shown_path
from pipeline.study.notation import Expression, check_keys, nearest, numbers, parse_expression
from pipeline.study.records import Record, grouped

if TYPE_CHECKING:
    from pipeline.study.cells import Cell

BY = ("highest", "lowest")


@dataclass(frozen=True)
class Best:
    """The `axis` of which the best choice is shown, and the figure that decides, `by` highest or lowest."""

    axis: str
    figure: Expression
    by: str

    def order(self, value: float) -> float:
        """The larger, the better."""
        return value if self.by == "highest" else -value


def read_best(given: Any, axes: Mapping[str, Any], where: str) -> Best | None:
    """The key `best`, None without it; UserError for what is wrong in it."""
    if not given:
        return None
    where = f"{where}: best"
    check_keys(given, ("axis", *BY), where)
    axis, by = given.get("axis"), [key for key in BY if key in given]
    if axis not in axes:
        raise UserError(f"{where}: there is no axis {axis}{nearest(axis, axes)}")
    if len(by) != 1:
        raise UserError(
            f"{where}: write one of {', '.join(BY)} and a figure, such as {{axis: lr, highest: score}}"
        )
    return Best(str(axis), parse_expression(given[by[0]], where), by[0])


def best_records(best: Best | None, records: Sequence[Record]) -> list[Record]:
    """The records of the best choice, marked with what it was chosen from; all of them without `best`."""
    if best is None:
        return list(records)
    kept = []
    for group in grouped(records, lambda record: _others(record["cell"], best.axis)).values():
        by_choice = grouped(group, lambda record: str(record["cell"][best.axis]))
        means = {
            choice: best.order(statistics.mean(values))
            for choice, some in by_choice.items()
            if (values := list(numbers(best.figure, some)))
        }
        if means:
            chosen = max(means, key=lambda choice: means[choice])
            kept += [{**record, "best": sorted(means)} for record in by_choice[chosen]]
    return kept


def best_note(best: Best | None, records: Sequence[Record]) -> str:
    """What the best was chosen from and by what, in a sentence; empty without it."""
    if best is None:
        return ""
    figure = ".".join(best.figure.path)
    tried = sorted({choice for record in records for choice in record["best"]})
    return f"Of {best.axis} ({', '.join(tried)}): the choice with the {best.by} mean {figure} over the seeds."


def keep_best_weights(best: Best, cells: Sequence["Cell"]) -> None:
    """Where all cells are finished, remove the weights of all but the best run, and say where those are."""
    for group in grouped(cells, lambda cell: _others(cell.values, best.axis)).values():
        records = [record for cell in group if (record := cell.record())]
        scores = [best.order(value) for value in numbers(best.figure, records)]
        if len(scores) < len(group):
            continue
        chosen = group[scores.index(max(scores))]
        for cell in group:
            for path in cell.folder.glob("checkpoint*.pt") if cell.folder != chosen.folder else ():
                path.unlink()
        if any(chosen.folder.glob("checkpoint*.pt")):
            print(f"{chosen.name}: best weights in {shown_path(chosen.folder)}")


def _others(cell: Mapping[str, Any], axis: str) -> tuple[str, ...]:
    return tuple(str(value) for name, value in cell.items() if name not in (axis, "seed"))
