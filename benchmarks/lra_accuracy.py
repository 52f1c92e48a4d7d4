"""Accuracy of study lra against the speed and memory that `lra_speed.py` measures."""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.by_length import Results, measured
from pipeline.errors import UserError
from pipeline.methods import ATTENTIONS
from pipeline.reports.plots import Bubble, plot_bubbles
from pipeline.study.records import read_records

TITLES = {
    "text": "Text",
    "listops": "ListOps",
    "retrieval": "Retrieval",
    "pathfinder": "Pathfinder",
    "image": "Image",
}
"""The tasks that the papers average, in the order of their tables."""


def read_sweep(folder: Path) -> list[dict[str, Any]]:
    """The records of study `lra` in `folder`; UserError if there are none, or of several settings."""
    records = read_records(folder, "lra")
    if not records:
        raise UserError(f"{folder} holds no record of scripts/study.sh lra")
    settings = {f"{one['cell']['preset']}/{one['cell']['setting']}" for one in records}
    if len(settings) > 1:
        raise UserError(
            f"{folder} holds runs of {', '.join(sorted(settings))}; name the folder of one of them"
        )
    return records


def means_over_tasks(cells: Sequence[dict[str, Any]]) -> tuple[list[str], dict[str, float]]:
    """Those of the five tasks that `cells` has, and its known attentions' mean accuracy over them.

    Leaves out attentions that lack one of them. Raises UserError if all do.
    """
    tasks = [task for task in TITLES if any(cell["cell"]["task"] == task for cell in cells)]
    means = {}
    for name in ATTENTIONS:
        own = [cell for cell in cells if cell["cell"]["method"] == name]
        by_task = [[cell["found"]["accuracy"] for cell in own if cell["cell"]["task"] == x] for x in tasks]
        if by_task and all(by_task):
            means[name] = statistics.fmean(map(statistics.fmean, by_task))
    if not means:
        raise UserError("no attention was run on all tasks of the sweep; run what is missing first")
    return tasks, means


def plot_accuracy(results: Results, cells: Sequence[dict[str, Any]], about: str, path: Path) -> None:
    """Accuracy of a sweep against training speed at the longest length, areas the peak memory, as a PNG.

    Shows the attentions that have both, and all tasks of the sweep; UserError if there are none. `cells`:
    records of study `lra` of one preset and setting; `about` says how the speed was measured.
    """
    length = max(results["settings"]["lengths"])
    tasks, means = means_over_tasks(cells)
    bubbles = []
    for name, mean in means.items():
        if found := measured(results, name).get(length):
            method = ATTENTIONS[name]
            bubbles.append(Bubble(method.label, method.color, 1 / found.median, mean, found.peak))
    if not bubbles:
        raise UserError(f"no attention has both an accuracy and a speed at length {length:,}; measure more")
    steps = {cell["cell"]["task"]: cell["training"]["updates"] for cell in cells}
    trained = ", ".join(
        TITLES[task] + (f" ({steps[task]:,} updates)" if steps[task] else "") for task in tasks
    )
    plot_bubbles(
        path,
        bubbles,
        title="Accuracy, speed and memory (area)",
        x_label=f"training steps per second at {length:,} tokens",
        y_label=f"mean accuracy on test over {len(tasks)} tasks, %",
        note=f"Areas: {min(b.area for b in bubbles):,.0f} to {max(b.area for b in bubbles):,.0f} MiB. "
        f"Accuracy: {cells[0]['cell']['preset']} on {trained}. Speed: {about}",
    )
