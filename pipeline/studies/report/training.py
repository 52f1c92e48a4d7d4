"""Sections on training runs, one per task of fairseq's: models and cost, settings that differ, curves."""

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from pipeline.reports.page import Cell, Link, Picture, Section, Table, curves
from pipeline.reports.plots import Curve
from pipeline.reports.tables import shown
from pipeline.studies.report.runs import Run

TITLES = {
    "language_modeling": "Language models",
    "carried_language_modeling": "Language models on long texts",
    "masked_lm": "Masked language models",
    "sentence_prediction": "Fine-tuning",
    "lra": "Training on Long Range Arena",
    "pixels": "Image models",
    "image_classification": "Vision Transformers",
    "copy": "Copy task",
    "": "Runs that have not begun",
}
HEADER = (
    "run", "architecture", "method", "state", "updates", "parameters", "train loss, bits", "valid loss, bits",
    "tokens/s", "training, minutes", "peak memory, MiB", "log",
)  # fmt: skip
# Where things lie and how much is printed decide no result.
NO_SETTINGS = {
    "common": ("tensorboard_logdir", "user_dir", "log_interval", "log_file"),
    "checkpoint": ("save_dir", "restore_file"),
    "distributed_training": None,
    "common_eval": None,
    "model": ("_name", "arch", "data", "dictionary_sha256", "tensorboard_logdir", "save_dir", "restore_file"),
    "task": ("_name", "dictionary_sha256"),
}
OTHER_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#882255", "#999933")
STYLES = ("-", "--", ":", "-.")
CURVES = 8
"""At most in one picture."""


def training_sections(runs: Sequence[Run], beside: Path) -> list[Section]:
    """A section per task; links lead from a page in the folder `beside`."""
    tasks = [*TITLES, *sorted({run.task for run in runs} - set(TITLES))]
    groups = {task: [run for run in runs if run.task == task] for task in tasks}
    return [
        Section(
            TITLES.get(task, task),
            [models(group, beside), *differing(group), *pictures(group)],
        )
        for task, group in groups.items()
        if group
    ]


def models(runs: Iterable[Run], beside: Path) -> Table:
    """What was trained, how far it is and what it cost."""
    rows: list[list[Cell]] = []
    for run in runs:
        memory = run.peak_memory_bytes
        rows.append(
            [
                run.name,
                run.architecture,
                method_label(run),
                run.status,
                f"{run.updates:,}",
                shown(run.parameters, ",d"),
                shown(run.train[-1][1] if run.train else None, ".3f"),
                shown(min((loss for _, loss in run.valid), default=None), ".3f"),
                shown(run.tokens_per_second, ",.0f"),
                shown(run.train_seconds and run.train_seconds / 60, ",.1f"),
                shown(memory and memory / 2**20, ",.0f"),
                Link(run.log.name, os.path.relpath(run.log, beside)),
            ]
        )
    return Table(HEADER, rows, "Models and their cost; valid loss: the lowest so far.")


def method_label(run: Run) -> str:
    """The method by its name in every table, else the layer plan."""
    if run.method:
        return run.method.label
    model = run.settings.get("model", {})
    return str(model.get("decoder_attention") or model.get("encoder_attention") or "–")


def differing(runs: Sequence[Run]) -> list[Table]:
    """The settings that two runs have with different values, a column each; no table if all are alike."""
    flat = [decisive(run.settings) for run in runs]
    names = sorted({name for settings in flat for name in settings})
    columns = [
        name for name in names if len({repr(settings[name]) for settings in flat if name in settings}) > 1
    ]
    if not columns:
        return []
    rows = [
        [run.name, *(written(settings[name]) if name in settings else "–" for name in columns)]
        for run, settings in zip(runs, flat, strict=True)
    ]
    return [Table(["run", *(name.replace("_", " ") for name in columns)], rows, "Settings that differ.")]


def decisive(settings: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """All settings that may decide a result, by name; one that several sections have counts once."""
    found: dict[str, Any] = {}
    for section, values in settings.items():
        left_out = NO_SETTINGS.get(section, ("_name",))
        if left_out is not None:
            for name, value in values.items():
                if name not in left_out:
                    found.setdefault(name, value)
    return found


def written(value: Any) -> str:
    """A value of a setting in a table; long lists of names stay whole."""
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return "none" if value in (None, "") else str(value)


def pictures(runs: Sequence[Run]) -> list[Picture]:
    """Loss by update in training and on valid, a few runs in each picture; runs of one point are left out."""
    drawn = [run for run in runs if max(len(run.train), len(run.valid)) > 1]
    return [picture(drawn[start : start + CURVES]) for start in range(0, len(drawn), CURVES)]


def picture(runs: Sequence[Run]) -> Picture:
    """The curves of `runs`."""
    looks = appearances(runs)
    panels = []
    for title, points in (("training", [run.train for run in runs]), ("valid", [run.valid for run in runs])):
        lines = [
            Curve(label, color, *zip(*curve, strict=True), style)
            for (label, color, style), curve in zip(looks, points, strict=True)
            if len(curve) > 1
        ]
        if lines:
            panels.append((title, "updates", "loss, bits", lines))
    return curves(panels)


def appearances(runs: Sequence[Run]) -> list[tuple[str, str, str]]:
    """Label, colour and line of each run: the method's colour, another line where it has been used."""
    labels = [run.method.label if run.method else "" for run in runs]
    shared = len(os.path.commonpath([Path(run.name).parent for run in runs]))
    others, used = cycle(OTHER_COLOURS), Counter()
    looks = []
    for run, label in zip(runs, labels, strict=True):
        color = run.method.color if run.method else next(others)
        own = label if label and labels.count(label) == 1 else run.name[shared:].lstrip("/")
        looks.append((own, color, STYLES[used[color] % len(STYLES)]))
        used[color] += 1
    return looks
