"""Inputs for the tests of the RoBERTa commands: a tiny text, an experiment on it, tiny GLUE tasks."""

import random
import sys
from pathlib import Path

from pytest import MonkeyPatch

from lab import cli
from lab.glue_tasks import TASKS, GlueTask

BASE = """
common: {seed: 1, log_format: json, log_interval: 1}
task: {_name: masked_lm, data: nowhere, tokens_per_sample: 32, sample_break_mode: none, mask_prob: 0.15}
criterion: {_name: chunked_masked_lm}
dataset: {batch_size: 8, num_workers: 0}
distributed_training: {distributed_world_size: 1}
optimization: {max_update: 4, update_freq: [1], lr: [0.01]}
optimizer: {_name: adam, adam_betas: "(0.9, 0.98)"}
lr_scheduler: {_name: polynomial_decay, warmup_updates: 2, total_num_update: 40}
checkpoint: {no_epoch_checkpoints: true, save_interval_updates: 2, keep_interval_updates: 1}
model: {encoder_layers: 2, encoder_embed_dim: 16, encoder_attention_heads: 2, dropout: 0.1}
"""
WORDS = (
    "cat",
    "dog",
    "mat",
    "house",
    "river",
    "stone",
    "apple",
    "green",
    "old",
    "small",
    "sat",
    "ran",
    "saw",
    "said",
    "knew",
    "with",
    "under",
    "near",
)
ROWS = {"train": 76, "valid": 33, "valid1": 7, "test": 5, "test1": 5}


def write_text(folder: Path) -> None:
    """train, valid and test of random sentences, a few to a document."""
    rng = random.Random(0)
    for split, count in (("train", 160), ("valid", 24), ("test", 24)):
        lines = []
        for number in range(count):
            lines.append(sentence(rng))
            lines += [""] if number % 5 == 4 else []
        (folder / f"{split}.txt").write_text("\n".join(lines) + "\n")


def sentence(rng: random.Random) -> str:
    return "The " + " ".join(rng.choice(WORDS) for _ in range(rng.randrange(3, 9))) + " ."


def write_glue(folder: Path) -> None:
    """All nine tasks in the layout of the download, with a few rows a split."""
    for task in TASKS.values():
        (folder / task.name).mkdir(parents=True)
        for split, file in task.files.items():
            (folder / task.name / f"{file}.tsv").write_text(table(task, split, ROWS[split]))


def table(task: GlueTask, split: str, rows: int) -> str:
    """A split as a file: the label, where it has one, then the sentences."""
    rng = random.Random(f"{task.name} {split}")
    labelled = not split.startswith("test")
    header = [*([task.label] if labelled else ["index"]), *task.sentences]
    lines = [] if labelled and task.columns else ["\t".join(header)]
    for number in range(rows):
        cells = [label(task, rng) if labelled else str(number)]
        cells += [sentence(rng) for _ in task.sentences]
        if labelled and task.columns:
            cells = ["source", cells[0], "", *cells[1:]]
        lines.append("\t".join(cells))
    return "\n".join(lines) + "\n"


def label(task: GlueTask, rng: random.Random) -> str:
    return rng.choice(task.labels) if task.labels else f"{rng.uniform(0, 5):.3f}"


def prepare(script: str, *arguments: object) -> None:
    """Run a script of data-prep/ in this process; mistakes raise UserError."""
    with MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["lab", f"data-prep/{script}.sh", *map(str, arguments)])
        cli.run()
