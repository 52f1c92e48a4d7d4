"""From nothing to a table: set-up, a small corpus, three language models trained and compared.

Makes .venv (PYTHON= and TORCH_SPEC= choose interpreter and torch), prepares the English text that comes
with Python, trains transnormer_t1, transnormer_t2 and fairseq's transformer_lm with equal budgets,
evaluates each, and lets the first one continue three prompts. At most ten minutes on two cores. After an
interruption the same command resumes; when everything is done it prints the table again.
"""

import re
import shlex
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.console import Parser, count
from pipeline.errors import UserError
from pipeline.files import (
    ROOT,
    RUN_MARK,
    begin,
    fingerprint,
    is_run,
    made_folder,
    once,
    write_atomically,
    write_json,
)
from pipeline.outputs import check_output, check_output_folder, json_with, run_lock
from pipeline.provenance import environment
from pipeline.training.fairseq_process import run_fairseq
from pipeline.training.launch import Machines

if TYPE_CHECKING:
    from pipeline.data.prepared import PreparedData
    from pipeline.training.log import Place
    from pipeline.training.recipe import Experiment

CONFIGS = ROOT / "configs" / "quickstart"
ARCHITECTURES = ("transnormer_t1", "transnormer_t2", "transformer_lm")
SPLITS = ("valid", "test")
COMMAND = "quickstart.sh"
FIGURES = "quickstart.json"
TRAINING_FIGURES = ("tokens_per_second", "peak_memory_bytes")
# Sampling, since a greedy continuation by a model this small repeats itself.
GENERATION = ["--sampling", "--sampling-topp", "0.8", "--temperature", "0.7", "--beam", "1"]
GENERATION += ["--max-len-a", "1", "--max-len-b", "40", "--seed", "1"]


def parse(words: Sequence[str]) -> Namespace:
    parser = Parser("scripts/quickstart.sh", __doc__)
    parser.add_argument(
        "--updates",
        type=count,
        metavar="N",
        help="train each model for N updates instead of those of configs/quickstart/base.yaml",
    )
    parser.add_argument(
        "--out",
        "--runs",
        dest="runs",
        type=Path,
        metavar="DIR",
        help="where everything goes (default: runs/quickstart in the project, runs/quickstart-N with "
        "--updates N)",
    )
    parser.add_argument(
        "--fresh",
        action="store_true",
        help="start over; runs of this command that are there move to DIR/earlier-N, nothing is removed",
    )
    options = parser.parse_args(words)
    if options.runs is None:
        suffix = f"-{options.updates}" if options.updates else ""
        options.runs = ROOT / "runs" / f"quickstart{suffix}"
    options.runs = options.runs.absolute()
    return options


@dataclass(frozen=True)
class Quickstart:
    """One comparison: the corpus, where results go, and how long to train."""

    data: "PreparedData"
    runs: Path
    updates: int | None
    machines: Machines

    def budget(self, experiment: "Experiment") -> list[str]:
        """Flags for another number of updates than the YAML's, the warm-up in proportion."""
        if self.updates is None:
            return []
        share = self.updates / experiment.get("optimization", "max_update")
        warmup = int(experiment.get("lr_scheduler", "warmup_updates") * share)
        return ["--max-update", str(self.updates), "--warmup-updates", str(warmup)]

    def place(self, architecture: str, experiment: "Experiment") -> "Place":
        """Of one model among all, which make the same number of updates."""
        from pipeline.training.log import Place

        updates = self.updates or experiment.get("optimization", "max_update")
        before = ARCHITECTURES.index(architecture)
        return Place(updates * before, updates * (len(ARCHITECTURES) - 1 - before))

    def result(self, architecture: str) -> dict[str, Any]:
        """The measured figures of one model: those on file, or after training and evaluating it."""
        from pipeline.evaluation.perplexity import evaluate
        from pipeline.training.checkpoint import read_language_model
        from pipeline.training.log import training_figures
        from pipeline.training.recipe import read_experiment
        from pipeline.training.train import train

        folder = self.runs / architecture
        experiment = read_experiment(CONFIGS / f"{architecture}.yaml")
        extra = self.budget(experiment)
        mark = fingerprint([experiment.settings, extra, self.data.manifest.get("splits")])

        def measure() -> dict[str, Any]:
            begin(folder, COMMAND, mark)
            print(f"{architecture}: training", flush=True)
            place = self.place(architecture, experiment)
            train(experiment, self.data.folder, self.machines, folder, extra, place=place)
            print("  evaluating", flush=True)
            checkpoint = read_language_model(folder / "checkpoint_last.pt")
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
    from pipeline.training.save_dir import move_aside

    folders = [mark.parent for mark in sorted(runs.glob(f"*/{RUN_MARK}")) if is_run(mark.parent, COMMAND)]
    with ExitStack() as locks:
        for folder in folders:
            locks.enter_context(run_lock(folder, option="--out"))
        move_aside(runs, [*folders, *runs.glob(FIGURES)])


def bundled_corpus() -> "PreparedData":
    """The corpus that needs no download, prepared if it is not there."""
    from pipeline.data.prepared import open_prepared

    folder = ROOT / "data" / "python-reference"
    script = ROOT / "data-prep" / "bundled_corpus.sh"
    if subprocess.run([script, "--dest", folder], stdin=subprocess.DEVNULL).returncode:
        raise UserError("the corpus could not be prepared, as said above")
    return open_prepared(folder, ("train", *SPLITS))


def main() -> None:
    """Compare, alone in the folder."""
    options = parse(sys.argv[1:])
    check_output_folder(options.runs, "--out")
    check_output(options.runs / FIGURES, json_with("models", "continuations"), makes_folder=True)
    with made_folder(options.runs), run_lock(options.runs, option="--out"):
        compare(options)


def compare(options: Namespace) -> None:
    """Train what is missing, and print and write the comparison."""
    import torch

    from pipeline.reports.documents import quickstart_table

    start = time.monotonic()
    data = bundled_corpus()
    if options.fresh:
        start_over(options.runs)
    machines = Machines(min(1, torch.cuda.device_count()))
    quickstart = Quickstart(data, options.runs, options.updates, machines)
    results = {name: quickstart.result(name) for name in ARCHITECTURES}
    texts = quickstart.continuations(ARCHITECTURES[0])
    device = "cuda" if machines.gpus else "cpu"
    record = {"models": results, "continuations": texts, **environment(device)}
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
