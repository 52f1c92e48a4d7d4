"""Vision Transformers: attentions x seeds, and fixed exponents of LLN (the command behind measure_vit.sh)."""

import statistics
import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from pipeline.commands.studies.measure_vit import parse
from pipeline.console import positive_list
from pipeline.evaluation.accuracy import count_correct
from pipeline.files import ROOT
from pipeline.provenance import environment
from pipeline.reports.vit import plot_vit, read_results, write_vit_table
from pipeline.sequence_methods import VIT_METHODS, choose_from
from pipeline.studies.image_cell import ImageCell
from pipeline.studies.measured_cell import (
    check_flags,
    first_seed,
    publish,
    run_missing,
    train_and_measure,
)
from pipeline.studies.parallel_runs import parallel_jobs
from pipeline.training.figures import peak_memory, read_log, training_seconds
from pipeline.training.image_run import CLASSIFICATION, open_labelled, read_image_checkpoint
from pipeline.training.process.resume import LAST
from pipeline.training.recipe import option, read_experiment

COMMAND = "measure_vit.sh"
LLN = "lln_diag"
# Flags that differ from run to run, and the option to use instead.
OURS = {
    "--encoder-attention": "--attention",
    "--lln-diag-alpha": "--alpha",
    "--lln-diag-beta": "--alpha",
    "--seed": "--seeds",
    "--save-dir": "--out",
}
STATISTICS = "--log-attention-statistics"


@dataclass(frozen=True)
class ViTCell(ImageCell):
    """One run of the sweep; `alpha` is a fixed alpha = beta, None for the method as it is."""

    alpha: float | None

    def own_flags(self) -> list[str]:
        """What is added to the YAML; with LLN alpha and beta are logged at each interval."""
        flags = list(self.flags)
        if self.alpha is not None:
            flags += ["--lln-diag-alpha", str(self.alpha)]
        if self.method.startswith(LLN) and option(flags, STATISTICS) is None:
            flags += [STATISTICS, option([*self.experiment.flags(), *flags], "--log-interval")]
        return [*flags, "--seed", str(self.seed)]

    @property
    def split(self) -> str:
        """What is tested on; a set with two splits, such as Dogs vs Cats, has no other than valid."""
        return "test" if "test" in self.data.manifest["splits"] else "valid"


def run_cell(cell: ViTCell, place: int, jobs: int) -> str:
    """Train (or resume) and test a cell at one of `jobs` places; its accuracy in a few words."""
    result = train_and_measure(cell, COMMAND, place, jobs, partial(measured, cell, place))
    return f"{result['accuracy']:.2f} % of {result['examples']:,} right ({result['split']})"


def measured(cell: ViTCell, place: int) -> dict[str, Any]:
    """The result of a trained cell, as a table needs it."""
    device = torch.device("cuda", place) if torch.cuda.is_available() else torch.device("cpu")
    path = cell.folder / LAST
    checkpoint = read_image_checkpoint(path, cell.data.folder, device, (CLASSIFICATION,))
    model, log = checkpoint.model, cell.folder / "train.log"
    preset = cell.experiment.config.stem.removesuffix(f"_{cell.method.partition('-')[0]}")
    return {
        **cell.about(preset, checkpoint),
        "alpha": cell.alpha,
        "training_images": cell.data.manifest["splits"]["train"]["images"],
        "split": cell.split,
        **count_correct(model, checkpoint.task, cell.split, checkpoint.batch_size, device),
        **logged(log),
        "train_seconds": training_seconds(log),
        "environment": environment(device.type),
    }


def logged(log: Path) -> dict[str, Any]:
    """What the log of a run says: accuracy on valid, gradient norm, loss scale, alpha and beta by layer."""
    records = read_log(log)
    inner = {int(record["num_updates"]): record for record in records["train_inner"]}
    valid = {int(record["valid_num_updates"]): record["valid_accuracy"] for record in records["valid"]}
    scales = [record["loss_scale"] for record in inner.values() if "loss_scale" in record]
    return {
        "valid_accuracy": sorted(valid.items()),
        "gradient_norm": statistics.median(record["gnorm"] for record in inner.values()),
        "smallest_loss_scale": min(scales, default=None),
        "exponents": {
            key: [(update, record[key]) for update, record in sorted(inner.items()) if key in record]
            for key in sorted({key for record in inner.values() for key in record})
            if key.startswith(("alpha/", "beta/"))
        },
        "peak_memory_bytes": peak_memory(records),
    }


def cells_of(options: Namespace, flags: Sequence[str], out: Path) -> list[ViTCell]:
    """All runs that are asked for, seed by seed."""
    wanted: list[tuple[str, float | None]] = [
        (name, None) for name in choose_from(VIT_METHODS, options.attention)
    ]
    wanted += [(LLN, alpha) for alpha in positive_list("--alpha", options.alpha)]
    recipes = {
        name: read_experiment(ROOT / "configs" / "vit" / f"{options.preset}_{name}.yaml")
        for name, _ in wanted
    }
    folder = options.data or next(iter(recipes.values())).data_folder()
    data = open_labelled(folder.absolute(), ("train", "valid"))
    cells = []
    for number in range(options.seeds):
        for name, alpha in wanted:
            method = name if alpha is None else f"{name}-{alpha:g}"
            seed = first_seed(recipes[name]) + number
            cells.append(ViTCell(recipes[name], method, seed, tuple(flags), out, data, alpha))
    return cells


def sweep(options: Namespace, flags: Sequence[str]) -> None:
    """Run what is missing and write table and curves of all that lies in the folder."""
    check_flags(flags, OURS)
    jobs = parallel_jobs(options.jobs)
    out = (options.out or ROOT / "runs" / "vit" / options.preset).absolute()
    cells = cells_of(options, flags, out)
    work = partial(run_cell, jobs=jobs)
    failures = run_missing(f"ViT, {options.preset}", cells, jobs, work, out)
    publish(read_results(out), out / "vit", write_vit_table, plot_vit, failures)


def main() -> None:
    """Entry point."""
    sweep(*parse(sys.argv[1:]))
