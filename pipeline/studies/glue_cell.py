"""One cell of a GLUE sweep: fine-tune with one learning rate and seed, evaluate on dev, keep the result."""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from pipeline.errors import UserError
from pipeline.evaluation.classification import decide, predict, read_rows, read_targets, score
from pipeline.files import FINGERPRINT, ROOT, begin, fingerprint, finished, write_json
from pipeline.glue_tasks import GlueTask
from pipeline.provenance import environment
from pipeline.training.encoder_checkpoint import (
    TASK_FILE,
    EncoderCheckpoint,
    load_encoder,
    read_dictionary,
    read_encoder,
)
from pipeline.training.figures import training_seconds
from pipeline.training.process.logged_run import run_fairseq
from pipeline.training.process.resume import LAST, complete_save, newest_whole
from pipeline.training.recipe import Experiment, read_experiment
from pipeline.training.save_dir import keep_vocabulary, whole_checkpoint

CONFIG = ROOT / "configs" / "glue" / "finetune.yaml"
RESULT = "result.json"
# What fairseq's criterion must be asked for, and the name under which it reports it.
REPORTS = {
    "accuracy": ([], "accuracy"),
    "f1": (["--report-acc-and-f1"], "f1"),
    "matthews": (["--report-mcc"], "mcc"),
    "pearson": (["--regression-target", "--report-pearson-and-spearman"], "pearson"),
}


@cache
def recipe() -> Experiment:
    """What all runs share; read once, because hydra, which reads it, takes long and is not for threads."""
    return read_experiment(CONFIG)


@dataclass(frozen=True)
class TaskData:
    """A task prepared by data-prep/glue.sh."""

    task: GlueTask
    folder: Path
    manifest: dict[str, Any]

    def examples(self, split: str) -> int:
        """How many examples a split has."""
        return self.manifest["splits"][split]["examples"]

    @property
    def dev_splits(self) -> list[str]:
        """The dev splits that are there."""
        return [split for split in self.task.dev_splits if split in self.manifest["splits"]]


@dataclass(frozen=True)
class Cell:
    """One fine-tuning run of a sweep; `max_updates` None means the epochs of the YAML."""

    encoder: EncoderCheckpoint
    data: TaskData
    learning_rate: float
    seed: int
    warmup_share: float
    max_updates: int | None
    folder: Path

    @property
    def name(self) -> str:
        """Of its folder and in what is printed."""
        return f"{self.data.task.name}, learning rate {self.learning_rate:g}, seed {self.seed}"

    def updates(self) -> int:
        """How many updates it makes."""
        batch = recipe().get("dataset", "batch_size")
        epochs = recipe().get("optimization", "max_epoch")
        whole = math.ceil(self.data.examples("train") / batch) * epochs
        return min(whole, self.max_updates or whole)

    def fingerprint(self) -> str:
        """A short hash of all that decides its result."""
        decisive = [
            self.encoder.fingerprint,
            self.data.manifest["tokenizer_fingerprint"],
            self.data.manifest["splits"],
            recipe().settings,
            [self.learning_rate, self.seed, self.warmup_share, self.updates()],
        ]
        return fingerprint(decisive)

    def result(self) -> dict[str, Any] | None:
        """What it has found if it is finished; UserError if its folder holds a run of other settings."""
        return finished(self.folder / RESULT, self.fingerprint())

    def valid_batch(self) -> int:
        """Dev examples in a batch such that the last has two: fairseq takes the correlation of each batch."""
        examples = self.data.examples(self.data.dev_splits[0])
        for size in range(recipe().get("dataset", "batch_size"), 1, -1):
            if examples % size != 1:
                return size
        raise UserError(f"{self.data.folder} has one dev example, for which there is no correlation")

    def arguments(self) -> list[str]:
        """Those of `fairseq-train`."""
        task, updates = self.data.task, self.updates()
        flags, metric = REPORTS[task.metrics[0]]
        words = [str(self.data.folder), "--user-dir", str(ROOT / "user_dir")]
        words += [*self.encoder.flags(), *recipe().flags(), *flags]
        words += ["--num-classes", str(task.classes), "--max-positions", str(self.encoder.max_positions)]
        words += ["--lr", str(self.learning_rate), "--seed", str(self.seed)]
        words += ["--max-update", str(updates), "--total-num-update", str(updates)]
        words += ["--warmup-updates", str(round(self.warmup_share * updates))]
        words += ["--best-checkpoint-metric", metric, "--valid-subset", self.data.dev_splits[0]]
        if task.is_regression:
            words += ["--batch-size-valid", str(self.valid_batch())]
        words += ["--finetune-from-model", str(self.encoder.path), "--save-dir", str(self.folder)]
        return words if torch.cuda.is_available() else [*words, "--cpu"]


def run_cell(cell: Cell, environ: dict[str, str]) -> dict[str, Any]:
    """Fine-tune (or resume) and evaluate; returns the result, which is also written to the run's folder.

    The optimiser's state is dropped in the end; the best epoch's weights stay.
    """
    prepare_folder(cell)
    run_fairseq("train", cell.arguments(), cell.folder / "train.log", environment=environ)
    best = best_checkpoint(cell.folder)
    result = {
        "task": cell.data.task.name,
        "learning_rate": cell.learning_rate,
        "seed": cell.seed,
        "updates": cell.updates(),
        FINGERPRINT: cell.fingerprint(),
        "dev": evaluate(read_encoder(best), cell.data),
        "seconds": training_seconds(cell.folder / "train.log"),
        "checkpoint": best.name,
        **environment("cuda" if torch.cuda.is_available() else "cpu"),
    }
    write_json(cell.folder / RESULT, result)
    (cell.folder / LAST).unlink(missing_ok=True)
    return result


def best_checkpoint(folder: Path) -> Path:
    """The weights of the best epoch; of the last if the metric was never defined: fairseq keeps no best then.

    (The correlation of constant scores, such as those of a run that has diverged.)
    """
    best = folder / "checkpoint_best.pt"
    if not best.is_file() and (folder / LAST).is_file():
        os.replace(folder / LAST, best)
    return whole_checkpoint(best)


def prepare_folder(cell: Cell) -> None:
    """The run's folder with tokeniser and labels; UserError if other settings have begun a run in it."""
    begin(cell.folder, "finetune_glue.sh", cell.fingerprint())
    keep_vocabulary(cell.data.folder, cell.folder)
    about = {key: cell.data.manifest[key] for key in ("task", "tokenizer", "partial")}
    write_json(cell.folder / TASK_FILE, about)
    if newest := newest_whole(cell.folder):
        complete_save(newest)
    else:
        (cell.folder / LAST).unlink(missing_ok=True)


def evaluate(encoder: EncoderCheckpoint, data: TaskData) -> dict[str, dict[str, float]]:
    """The task's metrics on each dev split, in percent."""
    dictionary = read_dictionary(data.folder)
    model = load_encoder(encoder, dictionary)
    metrics = {}
    for split in data.dev_splits:
        outputs = predict(model, read_rows(data.folder, split, dictionary), dictionary.pad())
        targets = read_targets(data.folder, split, data.task)
        metrics[split] = score(data.task, decide(data.task, outputs), targets)
    return metrics


def prune(cells: Sequence[Cell], keep: Cell) -> None:
    """Remove the weights of all cells but `keep`; their results and logs stay."""
    for cell in cells:
        if cell is not keep:
            for path in cell.folder.glob("checkpoint*.pt"):
                os.remove(path)
