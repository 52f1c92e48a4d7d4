"""The result of a GLUE sweep: the best of each task, and a table with the papers' rows next to it."""

import csv
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.files import ROOT
from pipeline.glue_tasks import TASKS
from pipeline.reports.tables import markdown_table
from pipeline.studies.glue_cell import TaskData
from pipeline.training.encoder_checkpoint import EncoderCheckpoint

PAPER = ROOT / "results" / "paper"
# Our column, and the columns of the papers' two tables.
COLUMNS = {
    ("MNLI", "valid"): ("mnli_m", "mnli"),
    ("MNLI", "valid1"): ("mnli_mm", None),
    ("QNLI", "valid"): ("qnli", "qnli"),
    ("QQP", "valid"): ("qqp", "qqp"),
    ("SST-2", "valid"): ("sst2", "sst2"),
    ("MRPC", "valid"): ("mrpc", None),
    ("CoLA", "valid"): ("cola", None),
    ("STS-B", "valid"): (None, None),
    ("RTE", "valid"): (None, None),
    ("WNLI", "valid"): (None, None),
}
PAPERS = {
    "TransNormer, Table 5": (PAPER / "transnormer_05_glue.csv", 0),
    "LLN, Table 1": (PAPER / "lln_01_glue.csv", 1),
}


def task_sentence(result: Mapping[str, Any]) -> str:
    """A cell's figures in a few words."""
    metric = TASKS[result["task"]].metrics[0]
    values = ", ".join(f"{figures[metric]:.2f}" for figures in result["dev"].values())
    return f"dev {metric} {values} after {result['updates']} updates"


def sweep_record(
    encoder: EncoderCheckpoint, tasks: Sequence[TaskData], results: Mapping[str, list[dict[str, Any]]]
) -> dict[str, Any]:
    """What is written to glue.json: every cell, and of every task the best learning rate.

    As in the papers the best is taken on the dev set: the learning rate with the highest mean over the
    seeds of the task's first metric (of MNLI's matched set).
    """
    record: dict[str, Any] = {
        "architecture": encoder.architecture,
        "encoder": encoder.fingerprint,
        "pretraining_updates": encoder.updates,
        "tasks": {},
    }
    for data in tasks:
        cells = results[data.task.name]
        record["tasks"][data.task.name] = {
            "partial": data.manifest["partial"],
            "examples": {split: data.examples(split) for split in data.manifest["splits"]},
            "best": best_of(data, cells) if cells else None,
            "cells": cells,
        }
    return record


def best_of(data: TaskData, cells: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The learning rate with the best mean over seeds, and its figures: mean and range of each metric."""
    metric, first = data.task.metrics[0], data.dev_splits[0]
    by_rate: dict[float, list[dict[str, Any]]] = {}
    for cell in cells:
        by_rate.setdefault(cell["learning_rate"], []).append(cell)
    rate, group = max(
        by_rate.items(), key=lambda item: statistics.mean(cell["dev"][first][metric] for cell in item[1])
    )
    dev = {}
    for split in data.dev_splits:
        dev[split] = {}
        for name in data.task.metrics:
            values = [cell["dev"][split][name] for cell in group]
            dev[split][name] = {
                "mean": statistics.mean(values),
                "lowest": min(values),
                "highest": max(values),
            }
    return {"learning_rate": rate, "seeds": [cell["seed"] for cell in group], "dev": dev}


def best_setting(task: Mapping[str, Any]) -> tuple[float, int]:
    """Learning rate and seed of the single best run of a task in a sweep's record."""
    first = next(iter(task["best"]["dev"]))
    metric = TASKS[task["cells"][0]["task"]].metrics[0]
    best = max(task["cells"], key=lambda cell: cell["dev"][first][metric])
    return best["learning_rate"], best["seed"]


def write_table(record: Mapping[str, Any]) -> str:
    """Our row and the papers', by task; figures of parts of a data set are marked."""
    columns = [
        column for column in COLUMNS if (record["tasks"].get(column[0]) or {}).get("best")
        and column[1] in record["tasks"][column[0]]["best"]["dev"]
    ]  # fmt: skip
    header = ["", *(column_title(task, split) for task, split in columns)]
    rows = [[f"{record['architecture']}, here", *(our_figure(record, *column) for column in columns)]]
    for title, (path, which) in PAPERS.items():
        for row in read_rows_of(path):
            figures = [paper_figure(row, COLUMNS[column][which]) for column in columns]
            if any(figure != "–" for figure in figures):
                rows.append([f"{row['method']} ({title})", *figures])
    notes = [
        "Dev sets. Here: mean over the seeds at the best learning rate. The papers: pre-trained on "
        "WikiText-103 at RoBERTa-base size.",
    ]
    partial = [name for name, task in record["tasks"].items() if task["partial"]]
    if partial:
        notes.append(
            f"* Parts of {', '.join(partial)} only: these figures cannot be compared with published ones."
        )
    return markdown_table(header, rows) + "\n\n" + "\n".join(notes)


def paper_figure(row: Mapping[str, str], column: str | None) -> str:
    """A figure of a paper's row as it stands there, a dash if it has none."""
    figure = row.get(column or "", "-")
    return "–" if figure == "-" else figure


def column_title(task: str, split: str) -> str:
    """Such as "MNLI mm, accuracy"."""
    sets = {"valid": " m", "valid1": " mm"} if len(TASKS[task].dev_splits) > 1 else {}
    return f"{task}{sets.get(split, '')}, {TASKS[task].metrics[0]}"


def our_figure(record: Mapping[str, Any], task: str, split: str) -> str:
    """Mean and range over the seeds."""
    entry = record["tasks"][task]
    figures = entry["best"]["dev"][split][TASKS[task].metrics[0]]
    text = f"{figures['mean']:.2f}"
    if figures["lowest"] != figures["highest"]:
        text += f" ({figures['lowest']:.2f} to {figures['highest']:.2f})"
    return text + ("*" if entry["partial"] else "")


def read_rows_of(path: Path) -> list[dict[str, str]]:
    """A paper's table, a row each."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
