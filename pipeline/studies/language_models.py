"""The measured language models: train, evaluate, one JSON a run (the command behind measure_lm.sh)."""

import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from pipeline.commands.studies.measure_lm import RESULTS, parse
from pipeline.console import number_of
from pipeline.data.prepared import PreparedData
from pipeline.errors import UserError
from pipeline.files import ROOT, once, read_json, shown_path
from pipeline.methods import LANGUAGE_MODELS
from pipeline.provenance import environment, portable_command
from pipeline.reports import documents as make_results
from pipeline.reports.language_models import runs_section
from pipeline.studies.measured_runs import (
    EVALUATED,
    corpus_of,
    prepared_wikitext2,
    pretraining_fingerprint,
)
from pipeline.training.figures import training_figures
from pipeline.training.recipe import Experiment, read_experiment
from pipeline.training.train import Machines, train

CONFIGS = ROOT / "configs" / "wikitext2"
RUNS = ROOT / "runs" / "measured" / "wikitext2"
# One seed each, and a second of two to see how much it changes.
SEEDS = dict.fromkeys(LANGUAGE_MODELS, (1,)) | {"transnormer_t1": (1, 2), "transformer_lm": (1, 2)}
EVALUATION_FIGURES = (
    "tokens",
    "words",
    "loss_nats_per_token",
    "perplexity_per_token",
    "perplexity_per_word",
)


@dataclass(frozen=True)
class Run:
    """One model to train: an architecture and a seed."""

    architecture: str
    seed: int

    @property
    def name(self) -> str:
        """Of its result file and folder."""
        return f"{self.architecture}-seed{self.seed}"

    @property
    def config(self) -> Path:
        """The YAML with its hyper-parameters."""
        return CONFIGS / f"{self.architecture}.yaml"


def all_runs() -> list[Run]:
    """Every run, all first seeds before the second ones."""
    runs = [Run(name, seed) for name, seeds in SEEDS.items() for seed in seeds]
    return sorted(runs, key=lambda run: run.seed)


def chosen_runs(only: str | None) -> list[Run]:
    """The runs that `only`, an architecture or a run, names; all without it."""
    runs = [run for run in all_runs() if only in (None, run.architecture, run.name)]
    if not runs:
        names = ", ".join([*SEEDS, *(run.name for run in all_runs())])
        raise UserError(f"--only {only} names no run; choose one of {names}")
    return runs


def prepared_data(folder: Path, source: Path | None) -> PreparedData:
    """The corpus, prepared first if need be from `source` (or by download)."""
    return prepared_wikitext2("wikitext.sh", folder, source)


def evaluations(checkpoint: Path, data: Path) -> dict[str, dict[str, Any]]:
    """What scripts/eval_ppl.sh says of each split, which it keeps beside the checkpoint."""
    command = [sys.executable, "-m", "pipeline", "evaluation.perplexity", str(checkpoint), str(data)]
    if subprocess.run([*command, "--split", ",".join(EVALUATED)]).returncode:
        raise UserError(f"{checkpoint} could not be evaluated (see the reason above)")
    return {split: read_json(checkpoint.with_suffix(f".{split}.json")) for split in EVALUATED}


def measure(run: Run, experiment: Experiment, data: PreparedData, updates: int, mark: str) -> dict[str, Any]:
    """Train (or resume) and evaluate; returns the record that is written to JSON."""
    print(f"{run.name}: training", flush=True)
    save_dir = RUNS / f"{run.name}-{mark}"
    flags = ["--seed", str(run.seed), "--max-update", str(updates)]
    machines = Machines(torch.cuda.device_count())
    train(run.config, data.folder, machines, save_dir, flags)
    evaluated = evaluations(save_dir / "checkpoint_best.pt", data.folder)
    return {
        "experiment": CONFIGS.name,
        "architecture": run.architecture,
        "seed": run.seed,
        "parameters": evaluated["test"]["parameters"],
        "updates": updates,
        "best_update": evaluated["test"]["updates"],
        **{split: {key: evaluated[split][key] for key in EVALUATION_FIGURES} for split in EVALUATED},
        **training_figures(save_dir / "train.log"),
        "processes": machines.processes,
        "data": corpus_of(data),
        "settings": experiment.settings,
        "train_command": portable_command(["scripts/train_lm.sh", str(run.config), *flags]),
        **environment("cuda" if machines.gpus else "cpu"),
    }


def main() -> None:
    """Measure what is not measured yet, then show or make the tables."""
    options = parse(sys.argv[1:])
    runs, out = chosen_runs(options.only), options.out.absolute()
    print(f"{number_of(len(runs), 'runs')}; results: {shown_path(out)}", flush=True)
    data: PreparedData | None = None
    records = []
    for number, run in enumerate(runs, 1):
        experiment = read_experiment(run.config)
        folder = experiment.data_folder()
        if folder is None:
            raise UserError(f"{shown_path(run.config)} names no data folder (task.data)")
        if data is None or data.folder != folder:
            data = prepared_data(folder, options.source)
        updates = options.updates or int(experiment.get("optimization", "max_update"))
        result = out / f"{run.name}.json"
        mark = pretraining_fingerprint(experiment, data, run.seed, updates)
        title = f"[{number}/{len(runs)}] {run.name}, {number_of(updates, 'updates')}"
        record = once(result, mark, partial(measure, run, experiment, data, updates, mark), title)
        print(f"{title}: {describe(record)}; in {shown_path(result)}", flush=True)
        records.append(record)
    if out == RESULTS:
        make_results.write_all()
    else:
        print(f"\n{runs_section(records)}\n\nresults: {shown_path(out)}")


def describe(record: dict[str, Any]) -> str:
    """The result in a few words."""
    perplexities = (f"{split} perplexity {record[split]['perplexity_per_word']:.1f}" for split in EVALUATED)
    return f"{', '.join(perplexities)} per word after {record['train_seconds'] / 60:.1f} minutes"
