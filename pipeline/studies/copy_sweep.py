"""The copy task: attentions x seeds (the command behind measure_copy.sh)."""

import math
import sys
from argparse import Namespace
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from pipeline.commands.studies.measure_copy import parse
from pipeline.evaluation.copying import evaluate
from pipeline.files import ROOT
from pipeline.provenance import environment
from pipeline.reports.copying import plot_copying, read_results, write_copy_table
from pipeline.sequence_methods import SEQUENCE_METHODS, choose_methods
from pipeline.studies.measured_cell import (
    Cell,
    check_flags,
    first_seed,
    publish,
    run_missing,
    train_and_measure,
)
from pipeline.studies.parallel_runs import parallel_jobs
from pipeline.training.figures import training_figures
from pipeline.training.process.resume import LAST
from pipeline.training.recipe import option, read_experiment
from pipeline.training.train import Machines

COMMAND = "measure_copy.sh"
# Flags that differ from run to run, and the option to use instead.
OURS = {
    "--decoder-attention": "--attention",
    "--norm-feature-map": "--attention",
    "--reformer-rounds": "--attention",
    "--seed": "--seeds",
    "--save-dir": "--out",
}


class CopyCell(Cell):
    """One run of the sweep."""

    def own_flags(self) -> list[str]:
        """What is added to the YAML."""
        return [*SEQUENCE_METHODS[self.method].flags(), *self.flags, "--seed", str(self.seed)]

    def arguments(self) -> list[str]:
        """Those of `fairseq-train`."""
        machines = Machines(1 if torch.cuda.is_available() else 0)
        flags = ["--user-dir", str(ROOT / "user_dir"), *self.experiment.flags(), *machines.flags()]
        return [*flags, "--update-freq", "1", "--save-dir", str(self.folder), *self.own_flags()]


def run_cell(cell: CopyCell, place: int, jobs: int) -> str:
    """Train (or resume) and test a cell at one of `jobs` places; its figures in a few words."""
    result = train_and_measure(cell, COMMAND, place, jobs, partial(measured, cell, place))
    return f"loss {result['loss_nats']:.4f} nats, {100 * result['free_exact']:.1f} % exact match"


def measured(cell: CopyCell, place: int) -> dict[str, Any]:
    """The result of a trained cell, as a table needs it; losses in nats."""
    device = torch.device("cuda", place) if torch.cuda.is_available() else torch.device("cpu")
    training = training_figures(cell.folder / "train.log")
    curves = {
        split: [(update, bits * math.log(2)) for update, bits in curve]
        for split, curve in training["curves"].items()
    }
    return {
        "preset": cell.experiment.config.stem,
        "method": cell.method,
        "seed": cell.seed,
        "flags": list(cell.flags),
        "updates": int(option(cell.arguments(), "--max-update") or 0),
        "settings": cell.experiment.settings,
        **evaluate(cell.folder / LAST, device),
        "curves": curves,
        "train_seconds": training["train_seconds"],
        "environment": environment(device.type),
    }


def sweep(options: Namespace, flags: Sequence[str]) -> None:
    """Run what is missing and write table and curves of all that lies in the folder."""
    check_flags(flags, OURS)
    jobs, methods = parallel_jobs(options.jobs), choose_methods(options.attention)
    experiment = read_experiment(ROOT / "configs" / "copy" / f"{options.preset}.yaml")
    out = (options.out or ROOT / "runs" / "copy" / options.preset).absolute()
    first = first_seed(experiment)
    cells = [
        CopyCell(experiment, method, first + number, tuple(flags), out)
        for number in range(options.seeds)
        for method in methods
    ]
    work = partial(run_cell, jobs=jobs)
    failures = run_missing(f"copy, {options.preset}", cells, jobs, work, out)
    publish(read_results(out), out / "copy", write_copy_table, plot_copying, failures)


def main() -> None:
    """Entry point."""
    sweep(*parse(sys.argv[1:]))
