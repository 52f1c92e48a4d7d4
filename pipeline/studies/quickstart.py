"""Train, evaluate and compare three small language models (the command behind quickstart.sh)."""

import re
import shlex
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pipeline.commands.studies.quickstart import parse
from pipeline.data.prepared import PreparedData, open_prepared
from pipeline.errors import UserError
from pipeline.evaluation.perplexity import evaluate
from pipeline.files import (
    ROOT,
    RUN_MARK,
    begin,
    fingerprint,
    is_run,
    once,
    shown_path,
    write_atomically,
    write_json,
)
from pipeline.provenance import environment
from pipeline.reports.quickstart import quickstart_table
from pipeline.training.checkpoint import read_checkpoint
from pipeline.training.figures import training_figures
from pipeline.training.process.logged_run import run_fairseq
from pipeline.training.process.resume import move_aside
from pipeline.training.process.run_lock import run_lock
from pipeline.training.recipe import Experiment, read_experiment
from pipeline.training.train import Machines, train

CONFIGS = ROOT / "configs" / "quickstart"
ARCHITECTURES = ("transnormer_t1", "transnormer_t2", "transformer_lm")
SPLITS = ("valid", "test")
COMMAND = "quickstart.sh"
FIGURES = "quickstart.json"
TRAINING_FIGURES = ("tokens_per_second", "peak_memory_bytes")
# Sampling, since a greedy continuation by a model this small repeats itself.
GENERATION = ["--sampling", "--sampling-topp", "0.8", "--temperature", "0.7", "--beam", "1"]
GENERATION += ["--max-len-a", "1", "--max-len-b", "40", "--seed", "1"]


@dataclass(frozen=True)
class Quickstart:
    """One comparison: the corpus, where results go, and how long to train."""

    data: PreparedData
    runs: Path
    updates: int | None
    machines: Machines

    def budget(self, experiment: Experiment) -> list[str]:
        """Flags for another number of updates than the YAML's, the warm-up in proportion."""
        if self.updates is None:
            return []
        share = self.updates / experiment.get("optimization", "max_update")
        warmup = int(experiment.get("lr_scheduler", "warmup_updates") * share)
        return ["--max-update", str(self.updates), "--warmup-updates", str(warmup)]

    def result(self, architecture: str) -> dict[str, Any]:
        """The measured figures of one model: those on file, or after training and evaluating it."""
        folder = self.runs / architecture
        config = CONFIGS / f"{architecture}.yaml"
        experiment = read_experiment(config)
        extra = self.budget(experiment)
        mark = fingerprint([experiment.settings, extra, self.data.manifest.get("splits")])

        def measure() -> dict[str, Any]:
            begin(folder, COMMAND, mark)
            print(f"{architecture}: training", flush=True)
            train(config, self.data.folder, self.machines, folder, extra)
            print("  evaluating", flush=True)
            checkpoint = read_checkpoint(folder / "checkpoint_last.pt")
            result = {split: evaluate(checkpoint, self.data, split) for split in SPLITS}
            figures = training_figures(folder / "train.log")
            return {**result, "training": {key: figures[key] for key in TRAINING_FIGURES}}

        print(flush=True)
        record = once(folder / "result.json", mark, measure, architecture)
        return {part: record[part] for part in (*SPLITS, "training")}

    def continuations(self, architecture: str) -> list[str]:
        """What a trained model makes of the prompts, through `fairseq-interactive`, once."""
        folder = self.runs / architecture
        file = folder / "continuations.txt"
        if file.exists():
            return file.read_text().splitlines()
        arguments = [str(self.data.folder), "--user-dir", str(ROOT / "user_dir")]
        arguments += ["--task", "language_modeling", *GENERATION]
        arguments += ["--path", str(folder / "checkpoint_last.pt")]
        arguments += ["--input", str(CONFIGS / "prompts.txt")]
        if model := self.data.sentencepiece_model:
            arguments += ["--bpe", "sentencepiece", "--sentencepiece-model", str(model)]
        if self.machines.gpus == 0:
            arguments.append("--cpu")
        lines: list[str] = []
        run_fairseq("interactive", arguments, folder / "generate.log", lines.append)
        found = [re.match(r"D-\d+\t[^\t]*\t(.*)", line) for line in lines]
        texts = [match[1] for match in found if match]
        write_atomically(file, "".join(f"{text}\n" for text in texts).encode())
        return texts


def start_over(runs: Path) -> None:
    """Move the runs of this command among the folders of `runs`, and their figures, aside; others stay."""
    folders = [mark.parent for mark in sorted(runs.glob(f"*/{RUN_MARK}")) if is_run(mark.parent, COMMAND)]
    with ExitStack() as locks:
        for folder in folders:
            locks.enter_context(run_lock(folder))
        move_aside(runs, [*folders, *runs.glob(FIGURES)])


def portable(results: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The results with paths that do not depend on where the project lies."""

    def shown(figures: dict[str, Any]) -> dict[str, Any]:
        paths = {key: shown_path(Path(figures[key])) for key in ("checkpoint", "data") if key in figures}
        return {**figures, **paths}

    return {
        name: {part: shown(figures) for part, figures in result.items()} for name, result in results.items()
    }


def bundled_corpus() -> PreparedData:
    """The corpus that needs no download, prepared if it is not there."""
    folder = ROOT / "data" / "python-reference"
    script = ROOT / "data-prep" / "bundled_corpus.sh"
    if subprocess.run([script, "--dest", folder], stdin=subprocess.DEVNULL).returncode:
        raise UserError("the corpus could not be prepared, as said above")
    return open_prepared(folder, ("train", *SPLITS))


def main() -> None:
    start = time.monotonic()
    options = parse(sys.argv[1:])
    data = bundled_corpus()
    if options.fresh:
        start_over(options.runs)
    machines = Machines(min(1, torch.cuda.device_count()))
    quickstart = Quickstart(data, options.runs, options.updates, machines)
    results = {name: quickstart.result(name) for name in ARCHITECTURES}
    texts = quickstart.continuations(ARCHITECTURES[0])
    device = "cuda" if machines.gpus else "cpu"
    record = {"models": portable(results), "continuations": texts, **environment(device)}
    write_json(options.runs / FIGURES, record)
    print(f"\n{ARCHITECTURES[0]} continues three prompts:")
    for text in texts:
        print(f"  {text}")
    print(f"\n{quickstart_table(results)}\n")
    print("Perplexity per word of the raw text, and per token that the models see.")
    print(f"Logs, checkpoints and results: {options.runs}")
    tensorboard = [str(Path(sys.prefix, "bin", "tensorboard")), "--logdir", str(options.runs)]
    print(f"Curves: {shlex.join(tensorboard)}")
    print(f"Done in {time.monotonic() - start:.0f} s.")
