"""The record of a GLUE sweep: every cell, and the best of each task."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.glue_tasks import TASKS
from pipeline.studies.glue_cell import TaskData
from pipeline.training.encoder_checkpoint import EncoderCheckpoint, count_parameters


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
        "parameters": count_parameters(encoder),
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
