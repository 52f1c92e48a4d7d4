"""Training runs, finished or not, as their logs describe them, and the sections of lab.sh report on them.

A section per task of fairseq's: models and cost, settings that differ, curves.
"""

import ast
import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

from lab.errors import MALFORMED
from lab.files import shown_path
from lab.methods import ATTENTIONS, ENCODERS, LANGUAGE_MODELS, NORM_ATTENTION, Method
from lab.publish.html import CellContent, EmbeddedPicture, Link, Section, Table, svg_of
from lab.publish.plots import Curve
from lab.publish.tables import shown
from lab.run.folder import LOG, is_aside
from lab.run.log import run_figures

# As printed, and bare as in fairseq's --log-file.
CONFIGURATION = re.compile(r"^(?:.*\| INFO \| fairseq_cli\.train \| )?(\{'.*\})$")
PARAMETERS = re.compile(r"^(?:.*\| )?num\. shared model params: ([\d,]+)")
DONE = re.compile(r"^(?:.*\| INFO \| fairseq_cli\.train \| )?done training in")

TITLES = {
    "language_modeling": "Language models",
    "carried_language_modeling": "Language models on long texts",
    "masked_lm": "Masked language models",
    "sentence_prediction": "Fine-tuning",
    "lra": "Training on Long Range Arena",
    "pixels": "Image models",
    "image_classification": "Vision Transformers",
    "copy": "Copy task",
    "recall": "Associative recall",
    "": "Runs that have not begun",
}
HEADER = (
    "run",
    "architecture",
    "method",
    "state",
    "updates",
    "parameters",
    "train loss, bits",
    "valid loss, bits",
    "tokens/s",
    "training, minutes",
    "peak memory, MiB",
    "log",
)
# Paths and the amount of logging do not affect results.
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

Settings = dict[str, Any]


@dataclass(frozen=True)
class Run:
    """A training run as its log describes it, however short that is.

    `settings` is fairseq's configuration by section, empty if the log does not hold it (yet), `ended` whether
    fairseq has said so; `figures` are those of `run_figures`.
    """

    name: str
    log: Path
    settings: Mapping[str, Settings]
    parameters: int | None
    ended: bool
    figures: dict[str, Any]

    @property
    def task(self) -> str:
        """fairseq's name of the task, "" if the log does not say."""
        return str(self.settings.get("task", {}).get("_name") or "")

    @property
    def architecture(self) -> str:
        """fairseq's name of the architecture, or a dash."""
        return str(self.settings.get("model", {}).get("_name") or "–")

    @property
    def last_update(self) -> int | None:
        """The number of updates requested, None if epochs decide."""
        return self.settings.get("optimization", {}).get("max_update") or None

    @property
    def updates(self) -> int:
        """Updates made so far."""
        return self.figures["updates"]

    @property
    def finished(self) -> bool:
        """Whether it has made its last update, or fairseq has ended it."""
        return self.ended or self.updates >= (self.last_update or math.inf)

    def curve(self, split: str) -> list[tuple[int, float]]:
        """Points (update, loss in bits) of `train` or `valid`."""
        return self.figures["curves"].get(split, [])

    @property
    def plan(self) -> str:
        """The layer plan that was given, "" for the architecture's own; one word if all layers are alike."""
        model = self.settings.get("model", {})
        given = str(model.get("decoder_attention") or model.get("encoder_attention") or "")
        names = {re.sub(r"\s*\*\s*\d+$", "", item.strip()) for item in given.split(",")}
        return names.pop() if len(names) == 1 else given

    @property
    def method(self) -> Method | None:
        """The method of every layer; None if it is not one of the compared methods."""
        if self.plan:
            return ATTENTIONS.get(self.plan) or {"norm": NORM_ATTENTION}.get(self.plan)
        encoder = self.architecture.removeprefix("roberta_")
        return LANGUAGE_MODELS.get(self.architecture) or ENCODERS.get(encoder)

    @property
    def status(self) -> str:
        """Its progress, in words."""
        if self.finished:
            return "finished"
        return f"at {self.updates:,} of {self.last_update:,}" if self.last_update else f"at {self.updates:,}"


def find_runs(folders: Iterable[Path]) -> list[Run]:
    """The runs below `folders`, named by their path in them, without those that --fresh has moved aside."""
    found = {}
    for folder in folders:
        for log in sorted(folder.rglob(LOG)):
            if log.is_file() and not is_aside(log, folder):
                found.setdefault(log.resolve(), run_name(log.parent, folder))
    return [run for log, name in found.items() if (run := read_run(name, log))]


def read_run(name: str, log: Path) -> Run | None:
    """The run of a log; None, with a note, if the log is not one of fairseq's."""
    try:
        run = Run(name, log, *read_head(log), run_figures(log))
        models([run], log.parent)
    except MALFORMED:
        print(f"left out: {shown_path(log)}", flush=True)
        return None
    return run


def run_name(place: Path, folder: Path) -> str:
    """The name that a reader sees of `place`, which lies in `folder`."""
    return folder.name if place == folder else os.path.relpath(place, folder)


def read_head(log: Path) -> tuple[dict[str, Settings], int | None, bool]:
    """The configuration and the number of parameters that fairseq has logged, and whether it has ended.

    Of a resumed run the last process counts.
    """
    settings: dict[str, Settings] = {}
    parameters, finished = None, False
    with log.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if match := CONFIGURATION.search(line.rstrip("\n")):
                settings, finished = read_configuration(match[1]), False
            elif match := PARAMETERS.search(line):
                parameters = int(match[1].replace(",", ""))
            finished = finished or DONE.match(line) is not None
    return settings, parameters, finished


def read_configuration(text: str) -> dict[str, Settings]:
    """The sections of a configuration that fairseq has printed; empty if they cannot be read."""
    try:
        value = _literal(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError, RecursionError):
        return {}
    return {key: part for key, part in value.items() if isinstance(part, dict)}


def _literal(node: ast.expr) -> Any:
    """The value of a literal in which names (of enumerations) are words, and Namespace(...) a dictionary."""
    match node:
        case ast.Constant():
            return node.value
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_literal(operand)
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_literal(item) for item in items]
        case ast.Dict(keys=keys, values=values):
            return {_literal(k): _literal(v) for k, v in zip(keys, values, strict=True) if k is not None}
        case ast.Call(keywords=keywords):
            return {keyword.arg: _literal(keyword.value) for keyword in keywords}
        case _:
            return ast.unparse(node)


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
    """The model, the progress and the cost of a training."""
    rows: list[list[CellContent]] = []
    for run in runs:
        train, valid = run.curve("train"), run.curve("valid")
        seconds, memory = run.figures["seconds"], run.figures["peak_memory_bytes"]
        rows.append(
            [
                run.name,
                run.architecture,
                method_label(run),
                run.status,
                f"{run.updates:,}",
                shown(run.parameters, ",d"),
                shown(train[-1][1] if train else None, ".3f"),
                shown(min((loss for _, loss in valid), default=None), ".3f"),
                shown(run.figures["tokens_per_second"], ",.0f"),
                shown(seconds and seconds / 60, ",.1f"),
                shown(memory and memory / 2**20, ",.0f"),
                Link(run.log.name, os.path.relpath(run.log, beside)),
            ]
        )
    return Table(HEADER, rows, "Models and their cost; valid loss: the lowest so far.")


def method_label(run: Run) -> str:
    """The method by its name in every table, else the layer plan."""
    return run.method.label if run.method else run.plan or "–"


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


def pictures(runs: Sequence[Run]) -> list[EmbeddedPicture]:
    """Loss by update in training and on valid, a few runs in each picture; runs of one point are left out."""
    drawn = [run for run in runs if max(len(run.curve("train")), len(run.curve("valid"))) > 1]
    return [picture(drawn[start : start + CURVES]) for start in range(0, len(drawn), CURVES)]


def picture(runs: Sequence[Run]) -> EmbeddedPicture:
    """The curves of `runs`."""
    looks = appearances(runs)
    panels = []
    for title, split in (("training", "train"), ("valid", "valid")):
        lines = [
            Curve(label, color, *zip(*run.curve(split), strict=True), style)
            for (label, color, style), run in zip(looks, runs, strict=True)
            if len(run.curve(split)) > 1
        ]
        if lines:
            panels.append((title, "updates", "loss, bits", lines))
    return svg_of(panels)


def appearances(runs: Sequence[Run]) -> list[tuple[str, str, str]]:
    """Label, colour and line of each run: its method's colour, unless another method has taken that one.

    Runs of one method have the same colour and different lines.
    """
    labels = [run.method.label if run.method else run.plan for run in runs]
    shared = len(os.path.commonpath([Path(run.name).parent for run in runs]))
    wanted = {run.method.color for run in runs if run.method}
    others = cycle([color for color in OTHER_COLOURS if color not in wanted] or OTHER_COLOURS)
    colors: dict[str, str] = {}
    looks, used = [], Counter()
    for run, label in zip(runs, labels, strict=True):
        own = label if label and labels.count(label) == 1 else run.name[shared:].lstrip("/")
        kind = label or own
        if kind not in colors:
            free = run.method is not None and run.method.color not in colors.values()
            colors[kind] = run.method.color if free else next(others)
        looks.append((own, colors[kind], STYLES[used[kind] % len(STYLES)]))
        used[kind] += 1
    return looks
