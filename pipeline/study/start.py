"""The checkpoint from which a cell starts: a run of another study, or one that the command names.

A study whose key `start` is the name of another starts each cell from the run of that study with the same
choices of its axes, in runs/studies. The fingerprint of that run stands for the checkpoint, so that a record
can be recognised where the checkpoint is not kept. With `start: given` the command names a checkpoint, which
its content identifies.
"""

from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.errors import UserError
from pipeline.files import sha256_of, shown_path
from pipeline.study.declaration import GIVEN, RUNS, find_study, read_study

if TYPE_CHECKING:
    from pipeline.study.cells import Cell


def start_of(cell: "Cell") -> Path | None:
    """The checkpoint that a cell starts from; None if it starts from random weights."""
    if cell.plan.start:
        return cell.plan.start
    if cell.study.start in ("", GIVEN):
        return None
    run = started_from(cell)
    return run.folder / f"checkpoint_{run.study.checkpoint}.pt"


def start_mark(cell: "Cell") -> str | None:
    """What tells the start of a cell from others; None if it starts from random weights."""
    if cell.plan.start:
        return sha256_once(cell.plan.start)[:12]
    return started_from(cell).fingerprint() if cell.study.start not in ("", GIVEN) else None


@cache
def sha256_once(path: Path) -> str:
    """The sha256 of a file as it was when first asked for."""
    return sha256_of(path)


def started_from(cell: "Cell") -> "Cell":
    """The run of the other study, its first seed."""
    return run_of(cell.study.start, tuple(cell.values.items()))


@cache
def run_of(name: str, values: tuple[tuple[str, str], ...]) -> "Cell":
    """The run of a study with these choices of its axes, among others; UserError for an axis without one."""
    from pipeline.study.cells import Cell, Plan, first_seed

    study, named = read_study(find_study(name)), dict(values)
    if missing := [axis for axis in study.axes if axis not in named]:
        raise UserError(f"start: the study {name} has the axis {missing[0]}; add it to the axes")
    choices = tuple(axis.choose([named[key]])[0] for key, axis in study.axes.items())
    run = Cell(Plan(study, RUNS / name, None, ()), choices, 0)
    return replace(run, seed=first_seed(run))


def start_flags(cell: "Cell") -> list[str]:
    """The flags of fairseq-train that build the model of the start and load its weights."""
    path = start_of(cell)
    if path is None:
        return []
    from pipeline.training.kinds import KINDS

    flags = KINDS[cell.experiment.get("task", "_name")].model_flags(path)
    return [*flags, "--finetune-from-model", str(path)]


def check_starts(cells: Iterable["Cell"]) -> None:
    """UserError for a cell whose checkpoint is not there."""
    for cell in cells:
        path = start_of(cell)
        if path is None and cell.study.start == GIVEN:
            raise UserError("name the checkpoint to start from with --start")
        if path is not None and not path.is_file():
            hint = f"run scripts/study.sh {cell.study.start} first, or " if not cell.plan.start else ""
            raise UserError(f"no checkpoint {shown_path(path)}; {hint}name another with --start")
