"""The process of one cell: takes the lock of its folder, trains or resumes, measures, writes the record.

    python -m lab.study.worker STUDY OUT '{"cell": {...}, "data": ..., "flags": [...], "chosen": ...}'

Before all checks have passed it says on stdout what is wrong and writes nothing; from then on its output goes
to the log of the run. The last `error: ...` on the first stdout says why it has failed.
"""

import json
import os
import sys
import time
import traceback
import warnings
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from conventions import INTERRUPTED
from conventions.files import open_to_append
from lab.children import end_with_error, end_with_parent
from lab.console import warn_only
from lab.errors import Diverged, UserError, explain, unexpected
from lab.files import FINGERPRINT, RUN_MARK, begin, is_run, shown_path, write_json
from lab.measure import EVALUATORS, Case, TrainedRun, evaluator
from lab.outputs import run_lock
from lab.study.cells import Cell, Plan
from lab.study.declaration import read_study
from lab.study.schema import STUDIES

SETTINGS_ARE_WRONG = 2
"""Exit code for a mistake in the settings, which the other cells share."""
LOG = "train.log"
MARK = "study.sh"
UNTRAINED = {"updates": 0, "seconds": None, "curves": {}}
"""What the record of a cell says of its training whose measure needs none."""


def cell_of(study: str, out: str, asked: str) -> Cell:
    """The cell that the command line names."""
    given = json.loads(asked)
    plan = Plan(
        read_study(Path(study)),
        Path(out),
        Path(given["data"]) if given["data"] else None,
        tuple(given["flags"]),
        Path(given["start"]) if given["start"] else None,
    )
    choices = tuple(axis.choose([given["cell"][name]])[0] for name, axis in plan.study.axes.items())
    return Cell(plan, choices, given["seed"], given["tuning"], given["chosen"])


def request_of(cell: Cell) -> list[str]:
    """The command line that names `cell`."""
    asked = {
        "cell": cell.values,
        "seed": cell.seed,
        "tuning": cell.tuning,
        "chosen": cell.chosen,
        "data": cell.plan.data,
        "flags": cell.plan.flags,
        "start": cell.plan.start,
    }
    return [str(cell.study.path), str(cell.plan.out), json.dumps(asked, default=str)]


def command_of(cell: Cell) -> list[str]:
    """The command that runs this cell, as a person types it."""
    ours = cell.study.path.parent == STUDIES
    words = ["scripts/study.sh", cell.study.name if ours else str(cell.study.path)]
    for axis, value in cell.values.items():
        words += [f"--{axis}", value]
    words += ["--seeds", str(cell.seed - cell.first_seed + 1)]
    for option, path in (("--start", cell.plan.start), ("--data", cell.plan.data)):
        words += [option, shown_path(path)] if path else []
    return [*words, *(["--", *cell.plan.flags] if cell.plan.flags else [])]


def check_arguments(cell: Cell, arguments: list[str]) -> Namespace:
    """The arguments as fairseq-train reads them; UserError for what needs no data to be wrong."""
    from lab.run.recipe import read_experiment
    from lab.run.train import checked

    read_experiment(cell.config)
    read = checked(arguments)
    if read.task not in EVALUATORS[cell.study.evaluate].tasks:
        raise UserError(
            f"{cell.study.path}: evaluate is {cell.study.evaluate}, which measures no runs of the task "
            f"{read.task}"
        )
    return read


def check_settings(cell: Cell, arguments: list[str]) -> Any:
    """The prepared data, once everything that can be wrong before training has been checked.

    Raises UserError; writes nothing.
    """
    from lab.data.prepared import has_valid, identify
    from lab.run.kinds import KINDS

    read = check_arguments(cell, arguments)
    folder, kind = cell.data_folder(), KINDS.get(read.task)
    if not folder or not kind:
        return None
    splits, valid = EVALUATORS[cell.study.evaluate].splits, has_valid(identify(folder))
    if cell.study.tune and not valid:
        raise UserError(f"{shown_path(folder)} has no valid split, by which {cell.tuned_axis} is chosen")
    wanted = tuple(split for split in splits if valid or split != "valid")
    data = kind.open_data(folder.absolute(), wanted)
    kind.check_data(read, data)
    if cell.start:
        kind.check_start(cell.start, data)
    return data


def train(cell: Cell, arguments: list[str], data: Any) -> dict[str, Any]:
    """Train until the last update, from the newest whole checkpoint; not at all if that has made it.

    A run that tries a value of a tuned setting may diverge: returns what its record then says of it.
    """
    from lab.run.folder import (
        LAST,
        complete_save,
        keep_data_record,
        keep_vocabulary,
        newest_whole,
    )
    from lab.run.kinds import KINDS
    from lab.run.process import run_here

    start = newest_whole(cell.folder)
    if data is not None:
        advice = "move it away, or choose another --out"
        keep_data_record(data.folder, cell.folder, start is not None, advice=advice)
    if start:
        complete_save(start)
        if 0 < cell.updates() <= start.updates:
            return {}
    else:
        (cell.folder / LAST).unlink(missing_ok=True)
    if data is not None:
        keep_vocabulary(data.folder, cell.folder)
        KINDS[cell.experiment.get("task", "_name")].record(cell.folder, cell.experiment.name, data, arguments)
    try:
        run_here("train", arguments)
    except Diverged as error:
        if cell.tuning is None:
            raise
        print(error, flush=True)
        return {"diverged": str(error)}
    return {}


def measured_checkpoint(cell: Cell) -> Path:
    """The best checkpoint if the study asks for it and there is one, else the last."""
    wanted = cell.folder / f"checkpoint_{cell.study.checkpoint}.pt"
    return wanted if wanted.is_file() else cell.folder / "checkpoint_last.pt"


def measure_run(cell: Cell, arguments: list[str], data: Any, device: Any) -> dict[str, Any]:
    """What the study's measure finds in a trained cell; nothing for a run of tuning."""
    from lab.run.folder import whole_checkpoint

    if cell.tuning is not None:
        return {}
    checkpoint = whole_checkpoint(measured_checkpoint(cell))
    print(f"evaluating {checkpoint.name}", flush=True)
    run = TrainedRun(cell.folder, checkpoint, tuple(arguments), data, device)
    return evaluator(cell.study.evaluate)(run)


def measure_case(cell: Cell, device: Any) -> dict[str, Any]:
    """What a measure without training finds."""
    return evaluator(cell.study.evaluate)(Case(cell.values, dict(cell.given), cell.seed, device))


def record_of(cell: Cell, training: dict[str, Any], found: dict[str, Any], device: Any) -> dict[str, Any]:
    """The record of a cell, from the figures of its training and those of its measure."""
    from lab.data.prepared import identify
    from lab.provenance import environment

    folder = cell.data_folder()
    return {
        "study": cell.study.name,
        "cell": cell.key,
        FINGERPRINT: cell.fingerprint(),
        "settings": cell.experiment.settings,
        "own_flags": cell.own_flags(),
        "flags": list(cell.plan.flags),
        "data": identify(folder) if folder else None,
        "training": training,
        **cell.measurement(),
        "found": found,
        **({"tuned": tried(cell)} if cell.chosen is not None else {}),
        "environment": environment(device.type),
    }


def tried(cell: Cell) -> dict[str, Any]:
    """What tuning has tried for a cell, and what it has chosen."""
    from lab.study.choosing import score_of, tuning_cells

    scores = {one.tuning: score_of(one) for one in tuning_cells(cell)}
    return {"setting": cell.tuned_axis, "chosen": cell.chosen, "tried": scores, "by": cell.study.tune.by}


def prune(cell: Cell) -> None:
    """Keep the log and the checkpoint that was measured, or all; those of tuning go."""
    if cell.study.keep == "all" and cell.tuning is None:
        return
    kept = measured_checkpoint(cell)
    for path in cell.checkpoints():
        if cell.tuning is not None or path != kept:
            path.unlink()


def work(cell: Cell) -> None:
    """Train, measure and record the cell, unless another process already has."""
    import torch

    from lab.run.log import run_figures

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    trains = EVALUATORS[cell.study.evaluate].trains
    arguments = cell.arguments(device.type == "cuda") if trains else []
    data = check_settings(cell, arguments) if trains else None
    if not is_run(cell.folder, MARK):
        begin(cell.folder, MARK, cell.fingerprint())
    with run_lock(cell.folder, option="--out"):
        if cell.record() is not None:
            return
        if not any(cell.folder.glob("checkpoint*.pt")):
            start_again(cell)
        begin(cell.folder, MARK, cell.fingerprint())
        with output_to(cell.folder / LOG):
            if trains:
                ending = train(cell, arguments, data)
                training, found = run_figures(cell.folder / LOG), measure_run(cell, arguments, data, device)
            else:
                ending, training, found = {}, UNTRAINED, measure_case(cell, device)
            record = {**record_of(cell, training, found, device), **ending}
        write_json(cell.record_path, record)
        prune(cell)


def start_again(cell: Cell) -> None:
    """Remove what a start without a checkpoint has left; files that no run writes stay."""
    from lab.run.folder import LEFT_BY_A_START
    from lab.run.kinds import GLUE_TASK, LRA_RUN

    patterns = (*LEFT_BY_A_START, GLUE_TASK, LRA_RUN)
    for path in [path for pattern in patterns for path in cell.folder.glob(pattern)]:
        path.unlink()
    write_json(cell.folder / RUN_MARK, {"command": MARK, FINGERPRINT: cell.fingerprint()})


@contextmanager
def output_to(log: Path) -> Iterator[None]:
    """Within it, whatever this process and its children print goes to the end of `log`."""
    kept = os.dup(1), os.dup(2)
    sys.stdout.flush()
    with open_to_append(log) as file:
        for descriptor in (1, 2):
            os.dup2(file.fileno(), descriptor)
    try:
        yield
    finally:
        try:
            sys.stdout.flush()
        finally:  # even if the disk is full
            for descriptor, old in zip((1, 2), kept, strict=True):
                os.dup2(old, descriptor)
                os.close(old)


def main() -> None:
    """Run one cell; the exit codes are those of all commands, and 2 for settings that are wrong."""
    end_with_parent()
    warnings.simplefilter("ignore")
    warn_only()
    cell = cell_of(*sys.argv[1:])
    sys.argv = command_of(cell)  # what a record names as its command
    started = time.monotonic()
    try:
        work(cell)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except Exception as error:
        sentence = explain(error)
        if sentence is None:
            with (cell.folder / LOG).open("a") if cell.folder.is_dir() else sys.stderr as out:
                traceback.print_exc(file=out)
            sentence = unexpected(error)
        wrong = isinstance(error, UserError) and not cell.folder.is_dir()
        end_with_error(sentence, SETTINGS_ARE_WRONG if wrong else 1)
    print(f"done in {time.monotonic() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main()
