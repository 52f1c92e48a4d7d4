"""The process of one cell: takes the lock of its folder, trains or resumes, measures, writes the record.

    python -m lab.study.worker STUDY OUT '{"cell": {...}, "data": ..., "flags": [...], "chosen": ...}'

Before all checks have passed it prints mistakes on stdout and writes nothing; from then on its output goes
to the log of the run. The last `error: ...` on the first stdout says why it has failed.
"""

import logging
import os
import sys
import time
import warnings
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from conventions import INTERRUPTED
from conventions.files import open_to_append
from lab.children import end_with, end_with_parent
from lab.console import warn_only
from lab.data.prepared import has_valid, identify
from lab.errors import Diverged, UserError
from lab.files import flush_to_disk, shown_path, write_json
from lab.measure import MEASURES, TrainedRun, measuring
from lab.provenance import environment
from lab.run.checkpoint import whole_checkpoint
from lab.run.log import run_figures
from lab.run.plan import RunPlan, checked, read_experiment
from lab.run.recipe import is_given
from lab.run.train import train
from lab.store import Environment, Record, Training
from lab.study.cells import Cell, prune
from lab.study.schedule import SETTINGS_ARE_WRONG, cell_of, command_of
from lab.study.tuning import tried
from user_dir.idle_options import logger as idle_options


class WrongSettings(UserError):
    """A mistake in the settings, which the other cells of the command share."""


def check_arguments(cell: Cell, arguments: list[str]) -> Namespace:
    """The arguments as fairseq-train reads them; UserError for mistakes that can be found without data.

    All methods share a YAML: that one of them does not use its settings is not worth a warning.
    """
    read_experiment(cell.config)
    own = cell.own_flags()
    with only_if(idle_options, lambda warning: is_given(own, warning.args[0])):
        read = checked(arguments)
    if read.task not in MEASURES[cell.study.evaluate].tasks:
        raise UserError(
            f"{cell.study.path}: evaluate is {cell.study.evaluate}, which measures no runs of the task "
            f"{read.task}"
        )
    return read


@contextmanager
def only_if(logger: logging.Logger, wanted: Callable[[logging.LogRecord], bool]) -> Iterator[None]:
    """Inside the block, the logger passes on only what is `wanted`."""
    logger.addFilter(wanted)
    try:
        yield
    finally:
        logger.removeFilter(wanted)


def plan_of(cell: Cell, gpu: bool) -> RunPlan:
    """The training of a cell, after all checks that are possible beforehand; writes nothing.

    Raises WrongSettings, or UserError for the data.
    """
    arguments = cell.arguments(gpu)
    try:
        read = check_arguments(cell, arguments)
    except UserError as error:
        raise WrongSettings(str(error)) from None
    folder = cell.data_folder()
    if folder:
        folder = folder.absolute()
    plan = RunPlan(cell.experiment.name, cell.run, arguments, read, folder, in_process=True)
    if not folder or not plan.kind:
        return plan
    splits, valid = MEASURES[cell.study.evaluate].splits, has_valid(identify(folder))
    if cell.is_tuned and not valid:
        raise UserError(f"{shown_path(folder)} has no valid split, by which {cell.tuned_axis} is chosen")
    return plan.opened([split for split in splits if valid or split != "valid"])


def trained(cell: Cell, plan: RunPlan) -> dict[str, Any]:
    """Train the cell; returns the entries of its record besides the figures of training and measure.

    A run that tries a value of a tuned setting may diverge.
    """
    try:
        train(plan)
    except Diverged as error:
        if cell.tuning is None:
            raise
        print(error, flush=True)
        return {"diverged": str(error)}
    return {}


def figures_of_run(cell: Cell, plan: RunPlan, device: torch.device) -> dict[str, Any]:
    """The figures of the study's measure for a trained cell; empty for a run of tuning."""
    if cell.tuning is not None:
        return {}
    checkpoint = whole_checkpoint(cell.run.checkpoint(cell.study.checkpoint))
    print(f"evaluating {checkpoint.name}", flush=True)
    run = TrainedRun(cell.folder, checkpoint, tuple(plan.arguments), plan.data, device)
    return measuring(cell.study.evaluate)(run)


def record_of(cell: Cell, training: Training, found: dict[str, Any], device: torch.device) -> Record:
    """The record of a cell, from its training's figures and its measure's."""
    folder = cell.data_folder()
    record = Record(
        study=cell.study.name,
        cell=cell.key,
        fingerprint=cell.fingerprint(),
        settings=cell.experiment.settings,
        own_flags=cell.own_flags(),
        flags=list(cell.plan.flags),
        data=identify(folder) if folder else None,
        training=training,
        **cell.measurement(),
        **cell.start_mark(),
        found=found,
        environment=environment_of(cell, device),
    )
    if cell.chosen is not None:
        record["tuned"] = tried(cell)
    return record


def environment_of(cell: Cell, device: torch.device) -> Environment:
    """Where the cell is measured, and with which commits it was trained and measured."""
    found = environment(device.type)
    began, now = cell.run.trained_at, found["commit"]
    return found if began in (None, now) else {**found, "commit": began, "measured_at": now}


def work(cell: Cell) -> None:
    """Train, measure and record the cell, unless another process already has."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    plan = plan_of(cell, device.type == "cuda")
    with cell.run.lock():
        if cell.record() is not None:
            return
        cell.run.begin()
        with output_to(cell.run.log):
            ending = trained(cell, plan)
            training = run_figures(cell.run.log)
            found = figures_of_run(cell, plan, device)
            record = {**record_of(cell, training, found, device), **ending}
        write_json(cell.record_path, record)
        flush_to_disk(cell.record_path)
        prune(cell)


@contextmanager
def output_to(log: Path) -> Iterator[None]:
    """Inside the block, all output of this process and its children is appended to `log`."""
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
    """Run one cell; exit codes as in all commands, and 2 for wrong settings."""
    end_with_parent()
    warnings.simplefilter("ignore")
    warn_only()
    cell = cell_of(*sys.argv[1:])
    sys.argv = command_of(cell)  # the command in the record
    started = time.monotonic()
    try:
        work(cell)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except Exception as error:
        code = SETTINGS_ARE_WRONG if isinstance(error, WrongSettings) else 1
        end_with(error, code, cell.run.log if cell.folder.is_dir() else None)
    print(f"done in {time.monotonic() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main()
