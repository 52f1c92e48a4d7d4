"""The weights that a study with `best` keeps: those of its best run, once all of its runs have finished."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from lab.files import shown_path
from lab.publish.tables import grouped
from lab.run.folder import RunFolder
from lab.store import record_path
from lab.study.cells import Cell
from lab.study.records import other_choices
from lab.study.schema import Best, Record, Study, numbers
from lab.study.shown import present_records
from lab.study.tuning import refusal


def keep_best_weights(best: Best, cells: Sequence[Cell]) -> None:
    """Where all cells are finished, print where the best run's weights are, and remove all others.

    The runs of earlier commands count, too. Those of earlier settings do not, and their weights stay. With
    `keep: all` all weights stay.
    """
    study, out = cells[0].study, cells[0].plan.out
    measured = grouped(present_records(study, out), lambda record: other_choices(record["cell"], best.axis))
    for choices, group in grouped(cells, lambda cell: other_choices(cell.values, best.axis)).items():
        records = [record for cell in group if not refusal(cell) and (record := cell.record())]
        if len([*numbers(best.figure, records)]) == len(group):
            keep_best_of(best, measured.get(choices, []), study, out)


def keep_best_of(best: Best, records: Iterable[Record], study: Study, out: Path) -> None:
    """Keep the weights of the best of these runs that has any, and say where if no other run was better."""
    scores = {
        out / record_path(record).with_suffix(""): best.order(value)
        for record in records
        if (value := best.figure(record)) is not None
    }
    runs = [run for folder in scores if (run := RunFolder(folder)).is_begun]
    if not runs:
        return
    chosen = max(runs, key=lambda run: scores[run.path])
    for run in runs:
        if study.keep != "all" and run != chosen:
            run.keep_only(None)
    if scores[chosen.path] == max(scores.values()):
        name = ", ".join(chosen.path.relative_to(out).parts)
        print(f"{name}: best weights in {shown_path(chosen.path)}")
