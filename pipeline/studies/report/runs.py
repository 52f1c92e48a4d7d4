"""Training runs, finished or not, as their logs describe them."""

import ast
import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.methods import ATTENTIONS, ENCODERS, LANGUAGE_MODELS, Method
from pipeline.training.log import run_figures

LOG = "train.log"
CONFIGURATION = re.compile(r"\| INFO \| fairseq_cli\.train \| (\{.*\})$")
PARAMETERS = re.compile(r"\| num\. shared model params: ([\d,]+)")
DONE = "| INFO | fairseq_cli.train | done training in"

Settings = dict[str, Any]


@dataclass(frozen=True)
class Run:
    """A training run; figures that its log does not hold (yet) are None, `settings` then empty.

    `settings` is fairseq's configuration by section; `train` and `valid` are points (update, loss in bits).
    """

    name: str
    log: Path
    settings: Mapping[str, Settings]
    parameters: int | None
    updates: int
    finished: bool
    train: list[tuple[int, float]]
    valid: list[tuple[int, float]]
    tokens_per_second: float | None
    train_seconds: float | None
    peak_memory_bytes: int | None

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
        """The number of updates asked for, None if epochs decide."""
        return self.settings.get("optimization", {}).get("max_update") or None

    @property
    def method(self) -> Method | None:
        """The method of every layer, None if it is none of the compared ones."""
        plan = self.settings.get("model", {}).get("encoder_attention")
        encoder = self.architecture.removeprefix("roberta_")
        known = LANGUAGE_MODELS.get(self.architecture) or ENCODERS.get(encoder)
        return known or ATTENTIONS.get(str(plan))

    @property
    def status(self) -> str:
        """How far it is."""
        if self.finished:
            return "finished"
        return f"at {self.updates:,} of {self.last_update:,}" if self.last_update else f"at {self.updates:,}"


def find_runs(folders: Iterable[Path]) -> list[Run]:
    """The runs below `folders`, named by their path in them; what --fresh has moved aside is left out."""
    found = {}
    for folder in folders:
        for log in sorted(folder.rglob(LOG)):
            if not is_aside(log, folder):
                found.setdefault(log.resolve(), run_name(log.parent, folder))
    return [read_run(log, name) for log, name in found.items()]


def is_aside(path: Path, folder: Path) -> bool:
    """Whether --fresh has moved `path`, which lies in `folder`, aside."""
    return any(part.startswith("earlier-") for part in path.relative_to(folder).parts)


def run_name(place: Path, folder: Path) -> str:
    """What a reader sees of `place`, which lies in `folder`."""
    return folder.name if place == folder else os.path.relpath(place, folder)


def read_run(log: Path, name: str) -> Run:
    """A run from its log, however short that is."""
    settings, parameters, finished = read_head(log)
    figures = run_figures(log)
    curves, updates = figures["curves"], figures["updates"]
    last = settings.get("optimization", {}).get("max_update") or math.inf
    return Run(
        name=name,
        log=log,
        settings=settings,
        parameters=parameters,
        updates=updates,
        finished=finished or updates >= last,
        train=curves.get("train", []),
        valid=curves.get("valid", []),
        tokens_per_second=figures["tokens_per_second"],
        train_seconds=figures["seconds"],
        peak_memory_bytes=figures["peak_memory_bytes"],
    )


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
            finished = finished or DONE in line
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
