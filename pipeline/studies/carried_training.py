"""Training with and without carried state (the command behind measure_carried.sh)."""

import sys
import threading
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch

from pipeline.commands.studies.measure_carried import parse
from pipeline.console import positive_list
from pipeline.data.prepared import PreparedData, open_prepared
from pipeline.errors import UserError
from pipeline.evaluation.carried_perplexity import evaluate_carried
from pipeline.evaluation.perplexity import evaluate
from pipeline.files import ROOT, shown_path
from pipeline.provenance import environment
from pipeline.reports.carried_training import plot_carried, read_carried, write_carried_table
from pipeline.studies.measured_cell import (
    DataCell,
    check_flags,
    first_seed,
    publish,
    run_missing,
    train_and_measure,
)
from pipeline.studies.measured_runs import corpus_of
from pipeline.studies.parallel_runs import parallel_jobs
from pipeline.training.checkpoint import read_checkpoint
from pipeline.training.figures import training_seconds
from pipeline.training.process.resume import LAST
from pipeline.training.recipe import read_experiment

COMMAND = "measure_carried.sh"
CONFIGS = ROOT / "configs" / "wikitext2"
# Flags that differ from run to run, and the option to use instead.
OURS = {
    "--arch": "--models",
    "--task": "none: both are run",
    "--tokens-per-sample": "--segments",
    "--batch-size": "the YAML's tokens per update",
    "--seed": "--seeds",
    "--save-dir": "--out",
}
STREAMS, READ_AT_ONCE = 8, 256  # of the evaluation with carried state
FIGURES = ("loss_nats_per_token", "perplexity_per_token", "perplexity_per_word", "tokens")
_evaluation = threading.Lock()
"""fairseq's evaluation knows one model at a time."""


@dataclass(frozen=True)
class CarriedCell(DataCell):
    """One run: samples of `segment` tokens, which are `carried` on from each other or stand apart."""

    data: PreparedData
    segment: int
    carried: bool

    @property
    def way(self) -> str:
        """Of its training."""
        return "carried" if self.carried else "apart"

    @property
    def name(self) -> str:
        """What it is called in messages."""
        return f"{self.method}, segments of {self.segment}, {self.way}, seed {self.seed}"

    @property
    def folder(self) -> Path:
        """Where it trains; its result lies beside it."""
        return self.out / self.method / f"{self.segment}-{self.way}" / f"seed{self.seed}"

    def own_flags(self) -> list[str]:
        """What is added to the YAML, whose tokens per update are kept."""
        words = ["--tokens-per-sample", str(self.segment)]
        words += ["--batch-size", str(tokens_per_batch(self) // self.segment)]
        if self.carried:
            words += ["--task", "carried_language_modeling"]
        return [*words, *self.flags, "--seed", str(self.seed)]

    def decisive(self) -> list[Any]:
        """See `Cell.decisive`: the text, too."""
        return [*super().decisive(), corpus_of(self.data)]


def tokens_per_batch(cell: CarriedCell) -> int:
    """Of the YAML; UserError if the segments do not divide them."""
    experiment = cell.experiment
    tokens = int(experiment.get("task", "tokens_per_sample")) * int(experiment.get("dataset", "batch_size"))
    if tokens % cell.segment:
        raise UserError(f"--segments names {cell.segment}, which does not divide the {tokens:,} of a batch")
    return tokens


def run_cell(cell: CarriedCell, place: int, jobs: int) -> str:
    """Train (or resume) and evaluate a cell at one of `jobs` places; its perplexities in a few words."""
    result = train_and_measure(cell, COMMAND, place, jobs, partial(measured, cell))
    apart, carried = (result[way]["perplexity_per_token"] for way in ("apart", "carried"))
    return f"perplexity per token {apart:.2f} without, {carried:.2f} with carried state"


def measured(cell: CarriedCell) -> dict[str, Any]:
    """The result of a trained cell, as a table needs it."""
    checkpoint, log = read_checkpoint(cell.folder / LAST), cell.folder / "train.log"
    reading = Namespace(streams=STREAMS, segment=READ_AT_ONCE, reset_at_documents=False)
    with _evaluation:
        apart = evaluate(checkpoint, cell.data, "test")
        carried = evaluate_carried(checkpoint, cell.data, "test", reading, {})
    return {
        "experiment": CONFIGS.name,
        "method": cell.method,
        "segment": cell.segment,
        "way": cell.way,
        "seed": cell.seed,
        "flags": list(cell.flags),
        "updates": checkpoint.updates,
        "tokens_per_update": tokens_per_batch(cell),
        "settings": cell.experiment.settings,
        "parameters": apart["parameters"],
        "apart": {key: apart[key] for key in FIGURES},
        "carried": {key: carried[key] for key in (*FIGURES, "streams", "longest", "buckets", "remark")},
        "data": corpus_of(cell.data),
        "train_seconds": training_seconds(log),
        "environment": environment("cuda" if torch.cuda.is_available() else "cpu"),
    }


def sweep(options: Namespace, flags: Sequence[str]) -> None:
    """Run what is missing and write table and curves of all that lies in the folder."""
    check_flags(flags, OURS)
    jobs, out = parallel_jobs(options.jobs), (options.out or ROOT / "runs" / "carried").absolute()
    lengths = segments(options.segments)
    cells = []
    for experiment, data in experiments(options):
        name, first = experiment.config.stem, first_seed(experiment)
        for segment, carried, number in product(lengths, (False, True), range(options.seeds)):
            cells.append(
                CarriedCell(experiment, name, first + number, tuple(flags), out, data, segment, carried)
            )
    work = partial(run_cell, jobs=jobs)
    failures = run_missing("carried state, WikiText-2", cells, jobs, work, out)
    publish(read_carried(out), out / "carried", write_carried_table, plot_carried, failures)


def experiments(options: Namespace) -> list[tuple[Any, PreparedData]]:
    """The YAMLs of --models, each with its data; UserError for a name without one."""
    found = []
    for name in options.models.split(","):
        path = CONFIGS / f"{name}.yaml"
        if not path.is_file() or name == "base":
            known = ", ".join(sorted(x.stem for x in CONFIGS.glob("*.yaml") if x.stem != "base"))
            raise UserError(f"--models names {name!r}; choose from {known}")
        experiment = read_experiment(path)
        folder = (options.data or experiment.data_folder()).absolute()
        if not folder.is_dir():
            raise UserError(
                f"no data folder {shown_path(folder)}; make it with data-prep/wikitext.sh wikitext-2 "
                f"--tokenizer sentencepiece --dest {shown_path(folder)}"
            )
        found.append((experiment, open_prepared(folder, ("train", "valid", "test"))))
    return found


def segments(text: str) -> list[int]:
    """The lengths of --segments."""
    return [int(number) for number in positive_list("--segments", text)]


def main() -> None:
    """Entry point."""
    sweep(*parse(sys.argv[1:]))
