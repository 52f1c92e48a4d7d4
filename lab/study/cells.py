"""The cells of a study: one training and its measurement each, for a choice of every axis and a seed.

A study whose key `start` is the name of another starts each cell from the run of that study with the same
choices of its axes and the same seed, in runs/studies. With `start: given` the command names a checkpoint.
With `tune`, a cell with `tuning` tries a value of the tuned setting (`tuning.py`).

Nothing is imported here that takes seconds: the process of a cell checks its settings and its plan again.
"""

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from glob import glob
from itertools import product
from pathlib import Path
from typing import Any

from conventions import own_attention_files
from conventions.mechanisms import MECHANISMS
from conventions.plans import check_name, read_plan
from lab.data.prepared import has_valid, identify, same_data
from lab.errors import UserError, nearest
from lab.files import FINGERPRINT, ROOT, fingerprint, finished, known_sha256, shown_path
from lab.run import glue
from lab.run.folder import RunFolder
from lab.run.launch import Machines
from lab.run.process import import_quickly
from lab.run.recipe import (
    ELSEWHERE,
    NAME_FLAGS,
    OF_TRAINING,
    PLACES,
    Experiment,
    as_flag,
    as_option,
    check_owned,
    compose_experiment,
    fairseq_arguments,
    is_given,
    option,
    shortened,
)
from lab.store import STORE, Start, stored
from lab.study.declaration import read_study
from lab.study.records import check_record
from lab.study.schema import GIVEN, RUNS, YAML, Choice, Study, allows

DECODERS = ("language_modeling", "carried_language_modeling", "copy", "recall", "pixels")
"""Tasks whose models have a `--decoder-attention`; the others have a `--encoder-attention`."""
GLUE = "sentence_prediction"
"""The task of fine-tuning, whose length follows from the data."""
STUDY_COMMAND = "study.sh"
"""How the folder of a cell names the command that has made it."""

OWNED_FLAGS = {
    **{"--seed": "--seeds", "--save-dir": "--out"},
    **dict.fromkeys(("--restore-file", "--finetune-from-model"), "start in the study's YAML"),
    **dict.fromkeys(("--arch", "--task"), "another config in the study's YAML"),
}
"""Flags that differ from cell to cell, and their replacements; an axis adds its own."""


@dataclass(frozen=True)
class Plan:
    """A command's request to a study: output folder, data, and flags for all cells.

    `data` is None for the folders that the YAMLs name; `start` is the checkpoint that the command names.
    """

    study: Study
    out: Path
    data: Path | None = None
    flags: tuple[str, ...] = ()
    start: Path | None = None


@dataclass(frozen=True)
class Cell:
    """One cell; `tuning` is the tuned setting's value on trial, `chosen` its value after tuning.

    `start_seed` is the seed of the other study's run that it starts from; None for the one of its own number.
    """

    plan: Plan
    choices: tuple[Choice, ...]
    seed: int
    tuning: str | None = None
    chosen: str | None = None
    start_seed: int | None = None

    @property
    def study(self) -> Study:
        """The study it belongs to."""
        return self.plan.study

    @property
    def values(self) -> dict[str, str]:
        """The choice of each axis, by name."""
        return {axis: choice.name for axis, choice in zip(self.study.axes, self.choices, strict=True)}

    @property
    def key(self) -> dict[str, Any]:
        """The choices that identify it in its record."""
        tried = {} if self.tuning is None else {"tuning": {self.tuned_axis: self.tuning}}
        return {**self.values, "seed": self.seed, **tried}

    @property
    def is_tuned(self) -> bool:
        """Whether tuning chooses a setting of it."""
        return self.study.tune is not None and allows(self.study.tune.only, self.values)

    @property
    def is_unchosen(self) -> bool:
        """Whether tuning has yet to choose its setting."""
        return self.is_tuned and self.tuning is None and self.chosen is None

    @property
    def tuned_axis(self) -> str:
        """The tuned setting."""
        assert self.study.tune is not None
        return self.study.tune.axis

    @property
    def name(self) -> str:
        """Its name in messages."""
        tried = [] if self.tuning is None else [f"{self.tuned_axis} {self.tuning}"]
        return ", ".join([*self.values.values(), *tried, f"seed {self.seed}"])

    @property
    def folder(self) -> Path:
        """Where it trains."""
        tried = [] if self.tuning is None else [f"{self.tuned_axis}-{self.tuning}"]
        return self.plan.out.joinpath(*self.values.values(), *tried, f"seed{self.seed}")

    @property
    def run(self) -> RunFolder:
        """Its folder, marked with these settings."""
        return RunFolder(self.folder, "--out", STUDY_COMMAND, self.fingerprint())

    @property
    def first_seed(self) -> int:
        """The seed of its YAML, from which a study counts; UserError if it is not a whole number."""
        first = self.experiment.get("common", "seed", 1)
        if not str(first).isdecimal():
            raise UserError(
                f"{self.study.path}: {', '.join(self.values.values())}: common.seed is {first!r}; write a "
                "whole number"
            )
        return int(first)

    @property
    def seed_number(self) -> int:
        """Its place among the seeds of its study, from 1."""
        return self.seed - self.first_seed + 1

    @property
    def record_path(self) -> Path:
        """Its record, beside the folder."""
        return self.folder.with_name(f"{self.folder.name}.json")

    @property
    def place(self) -> Path:
        """Its record's path below the folder of the study, its name in the store."""
        return self.record_path.relative_to(self.plan.out)

    @property
    def is_recorded(self) -> bool:
        """Whether it has a record: its own file, or a line of the store."""
        return self.record_path.is_file() or self.place in stored(self.plan.out)

    @property
    def config(self) -> Path:
        """The YAML it trains from."""
        return self.filled_in(self.study.config)

    def filled_in(self, path: str) -> Path:
        """A path of the study's YAML with the choices in place of `{axis}`."""
        names = {axis: choice.config for axis, choice in zip(self.study.axes, self.choices, strict=True)}
        return ROOT / path.format(**names)

    @property
    def given(self) -> list[tuple[str, Any]]:
        """The study's settings, then the choices'."""
        return [*self.study.settings.items(), *(x for one in self.choices for x in self.settings_of(one))]

    @cached_property
    def experiment(self) -> Experiment:
        """The YAML's settings and the choices', not compared with fairseq's."""
        experiment = _composed(self.config, self.config.stat().st_mtime_ns)
        for key, value in self.given:
            if key == YAML:
                experiment = experiment.changed(value)
        for key, value in self.given:
            if value is False:  # no flag of fairseq turns a switch off
                on = [name for name in experiment.settings if experiment.get(name, key) is True]
                experiment = experiment.changed({name: {key: False} for name in on})
        return experiment

    def given_flags(self) -> list[str]:
        """Flags that the study, its choices, the user and tuning give, besides the YAML's."""
        words = []
        for key, value in self.given:
            if key != YAML:
                words += as_flag(self.plan_setting() if key == "plan" else key, value)
        words += self.plan.flags
        if (value := self.tuning if self.tuning is not None else self.chosen) is not None:
            words += as_flag(self.tuned_axis, value)
        return words

    def own_flags(self) -> list[str]:
        """Flags added to the YAML, with the shortened schedule of a run of tuning and the seed."""
        words = self.given_flags()
        if self.tuning is not None:
            words += shortened(self.experiment, words, self.study.tune.updates)
        return [*words, "--seed", str(self.seed)]

    def settings_of(self, choice: Choice) -> Iterator[tuple[str, Any]]:
        """The settings of a choice; those below another axis's name depend on the choice of that axis."""
        for key, value in choice.settings.items():
            if self.is_conditional(key, value):
                yield from (value[self.values[key]] or {}).items()
            else:
                yield key, value

    def is_conditional(self, key: str, value: Any) -> bool:
        """Whether `value` has settings for choices of the axis `key`."""
        return key in self.study.axes and isinstance(value, dict)

    def exists(self) -> bool:
        """Whether there is a YAML for it, and each of its choices has settings for the others."""
        return self.config.is_file() and all(
            self.values[key] in value
            for choice in self.choices
            for key, value in choice.settings.items()
            if self.is_conditional(key, value)
        )

    def plan_setting(self) -> str:
        """The setting that holds the layer plan."""
        return f"{'decoder' if self.experiment.get('task', '_name') in DECODERS else 'encoder'}_attention"

    def data_folder(self) -> Path | None:
        """The prepared data; None for a task that draws its own.

        --data names one folder for all, or the folder of those that the study or the YAMLs name.
        """
        own = self.filled_in(self.study.data) if self.study.data else self.experiment.data_folder()
        if own is None or self.plan.data is None:
            return own
        inside = self.plan.data / own.name
        return (inside if self.study.data or inside.is_dir() else self.plan.data).absolute()

    def arguments(self, gpu: bool) -> list[str]:
        """Arguments of `fairseq-train`, on one GPU or the CPU; without a valid split nothing is validated."""
        data, words = self.data_folder(), [*self.start_flags(), *self.own_flags(), *self.data_flags()]
        if data and data.is_dir() and not has_valid(identify(data)):
            words.append("--disable-validation")
        return fairseq_arguments(self.experiment, data, Machines(1 if gpu else 0), self.folder, words)

    @property
    def start(self) -> Path | None:
        """The checkpoint that it starts from; None if it starts from random weights."""
        if (run := self.started_from) is None:
            return self.plan.start
        return run.run.checkpoint(run.study.checkpoint)

    @property
    def started_from(self) -> "Cell | None":
        """The other study's run that it starts from; None if it starts from no such run."""
        if self.study.start in ("", GIVEN) or self.plan.start:
            return None
        run = _run_of(self.study.start, tuple(self.values.items()))
        own = run.first_seed + self.seed_number - 1
        return replace(run, seed=own if self.start_seed is None else self.start_seed)

    def start_mark(self) -> dict[str, Start]:
        """The checkpoint that it starts from, as the entry `start` of its record; empty without one."""
        if self.start is None:
            return {}
        mark = Start(path=shown_path(self.start), fingerprint=self.start_fingerprint())
        if run := self.started_from:
            mark["seed"] = run.seed
        return {"start": mark}

    def start_fingerprint(self) -> str:
        """A short hash of the checkpoint that the command names, or of the other run's settings."""
        run = self.started_from
        return run.fingerprint() if run else known_sha256(self.plan.start)[:12]

    def start_flags(self) -> list[str]:
        """The flags of fairseq-train that build the model of the start and load its weights."""
        if self.start is None:
            return []
        kinds = import_quickly("lab.run.kinds").KINDS
        flags = kinds[self.experiment.get("task", "_name")].model_flags(self.start)
        return [*flags, "--finetune-from-model", str(self.start)]

    def data_flags(self) -> list[str]:
        """Flags that follow from the prepared data, such as the number of classes.

        Flags that the study or the user gives win, except --max-update, which is already taken into account.
        """
        if self.experiment.get("task", "_name") != GLUE:
            return []
        words, wins, given = [], False, self.given_flags()
        for word in glue.data_flags(self.data_folder(), self.experiment, self.own_flags()):
            if word.startswith("--"):
                wins = word != "--max-update" and is_given(given, word)
            words += [] if wins else [word]
        return words

    def updates(self) -> int:
        """The last update of its training, 0 if it ends by epochs."""
        given = [*self.experiment.flags(), *self.own_flags(), *self.data_flags()]
        last = option(given, "--max-update") or ""
        return int(last) if last.isdecimal() else 0

    def fingerprint(self) -> str:
        """A short hash of settings, start and named data, which decide its result.

        The fingerprint of another study's run stands for its checkpoint, so that a record can be recognised
        where that is not kept; one that the command names is identified by its content. `same_data` compares
        what the data are.
        """
        further = []
        if self.start:
            further.append(self.start_fingerprint())
        if self.study.data:
            further.append(shown_path(self.filled_in(self.study.data)))
        return fingerprint([self.experiment.settings, self.own_flags(), *further])

    def measurement(self) -> dict[str, str]:
        """How its study measures a run; empty for runs of tuning, which are not measured."""
        if self.tuning is not None:
            return {}
        return {"checkpoint": self.study.checkpoint, "evaluate": self.study.evaluate}

    def check_stored(self, record: Mapping[str, Any]) -> None:
        """UserError if a record in the store has other settings, or another start."""
        if record[FINGERPRINT] == self.fingerprint():
            return
        seed = record.get("start", {}).get("seed")
        if record[FINGERPRINT] == replace(self, start_seed=seed).fingerprint():
            why = f"started from seed {seed} of {self.study.start}, not from its own"
        else:
            why = "was made with other settings"
        raise UserError(
            f"{shown_path(self.plan.out / STORE)}: {self.place} {why}; remove its line to measure it again, "
            "or choose another --out"
        )

    def record(self) -> dict[str, Any] | None:
        """Its record if it is finished; UserError if one of other settings or data is in its place."""
        if not self.is_recorded:
            if os.path.lexists(self.record_path):
                raise UserError(f"{shown_path(self.record_path)} is not a file; move it away")
            return None
        record = finished(self.record_path, self.fingerprint())
        if record is None:  # it is in the store, or another process has just moved it there
            record = stored(self.plan.out)[self.place]
            self.check_stored(record)
        folder = self.data_folder()
        check_record(self.record_path, record, self.plan.out, self.study)
        if changed := [key for key, value in self.measurement().items() if record.get(key, value) != value]:
            raise UserError(
                f"{shown_path(self.record_path)} was measured with another `{changed[0]}`; move it away to "
                "measure again, or choose another --out"
            )
        if folder and folder.is_dir() and not same_data(record.get("data"), identify(folder)):
            raise UserError(
                f"{shown_path(self.record_path)} was measured on other data than {shown_path(folder)}; move "
                "it away, give its data with --data, or choose another --out"
            )
        return record


@cache
def _composed(config: Path, changed: int) -> Experiment:
    """A YAML, read once as long as it is not `changed`."""
    return compose_experiment(config)


@cache
def _run_of(name: str, values: tuple[tuple[str, str], ...]) -> Cell:
    """The first seed of a study's cell matching `values`; extra axes are ignored.

    Raises UserError for a missing one, and for one whose setting is tuned: what was chosen is not known here.
    """
    study, named = read_study(name), dict(values)
    if missing := [axis for axis in study.axes if axis not in named]:
        raise UserError(f"start: the study {name} has the axis {missing[0]}; add it to the axes")
    choices = tuple(axis.choice(named[key]) for key, axis in study.axes.items())
    run = Cell(Plan(study, RUNS / name), choices, 0)
    if run.is_tuned:
        raise UserError(f"start: the study {name} tunes {run.tuned_axis}; start from a study without tune")
    return replace(run, seed=run.first_seed)


def cells_of(plan: Plan, asked: Mapping[str, Sequence[str]], seeds: int) -> list[Cell]:
    """All cells of a study, seed by seed; `asked` has the choices of an axis that replace the YAML's.

    A combination that does not exist is left out. Raises UserError for an unknown choice, for one of which
    no combination exists, and for flags that differ from cell to cell.
    """
    study = plan.study
    chosen = [axis.choose(asked.get(name) or axis.usual) for name, axis in study.axes.items()]
    check_flags(plan, chosen)
    every = [Cell(plan, choices, 0) for choices in product(*chosen)]
    if "{" not in study.config and not every[0].config.is_file():
        raise UserError(f"{study.path}: config names {study.config}, which does not exist")
    combinations = [cell for cell in every if cell.exists()]
    check_covered(study, chosen, combinations, [name for name, words in asked.items() if words])
    if not combinations:
        raise UserError(f"{study.path}: no combination of these choices has a YAML and settings")
    return [
        replace(cell, seed=cell.first_seed + number)
        for number in range(seeds)
        for cell in combinations
        if all(choice.seeds is None or number < choice.seeds for choice in cell.choices)
    ]


def check_covered(
    study: Study, chosen: Sequence[Sequence[Choice]], cells: Sequence[Cell], asked: Collection[str]
) -> None:
    """UserError for a choice of an `asked` axis that no cell has.

    Without asked axes, or without any cell, the choices of every axis are checked.
    """
    for (name, axis), choices in zip(study.axes.items(), chosen, strict=True):
        if cells and asked and name not in asked:
            continue
        for choice in choices:
            if any(cell.values[name] == choice.name for cell in cells):
                continue
            known = known_values(study, name) if axis.placeholder else [choice.name]
            if not known:
                raise UserError(f"{study.path}: no YAML fits config {study.config} with these choices")
            if choice.name not in known:
                hint = nearest(choice.name, known)
                raise UserError(f"--{name} {choice.name}: {study.config} has no such YAML{hint}")
            if name in asked:
                raise UserError(
                    f"--{name} {choice.name}: {study.name} has no settings for it with the other choices"
                )


def known_values(study: Study, axis: str) -> list[str]:
    """The values of a placeholder for which there are YAMLs, each once."""
    pattern = re.escape(study.config)
    for name, other in study.axes.items():
        known = "|".join(re.escape(choice.config) for choice in other.choices.values())
        words = "([^/]+)" if name == axis else f"(?:{known})" if other.closed else "[^/]+"
        pattern = pattern.replace(re.escape(f"{{{name}}}"), words)
    paths = glob(re.sub(r"\{\w+\}", "*", study.config), root_dir=ROOT)
    found = {match[1] for path in paths if (match := re.fullmatch(pattern, path))}
    return sorted(name for name in found if not name.startswith("base"))


def check_flags(plan: Plan, chosen: Sequence[Sequence[Choice]]) -> None:
    """UserError for a flag of the user's that the chosen choices set."""
    ours = dict(OWNED_FLAGS)
    for name, choices in zip(plan.study.axes, chosen, strict=True):
        for choice in choices:
            for key in setting_names(choice.settings, plan.study.axes):
                flags = ("--decoder-attention", "--encoder-attention") if key == "plan" else (as_option(key),)
                ours.update(dict.fromkeys(flags, f"--{name}"))
    if any(Cell(plan, choices, 1).is_tuned for choices in product(*chosen)):
        ours[as_option(plan.study.tune.axis)] = "tune in the study's YAML"
    for flag, instead in ours.items():
        if is_given(plan.flags, flag):
            raise UserError(f"{flag} differs from cell to cell; use {instead}")
    check_owned("scripts/study.sh", plan.flags, OF_TRAINING)


def setting_names(settings: Mapping[str, Any], axes: Collection[str]) -> Iterator[str]:
    """Settings of a choice by the names of their flags, those below `yaml` and other axes included."""
    for key, value in settings.items():
        if key == YAML:
            for group, values in value.items():
                yield from (
                    NAME_FLAGS[group].removeprefix("--") if name == "_name" else name for name in values
                )
        elif key in axes and isinstance(value, dict):
            for further in value.values():
                yield from setting_names(further or {}, axes)
        else:
            yield key


def check_trusted(cells: Iterable[Cell]) -> None:
    """UserError for a YAML, which may be somebody else's, that sets a flag of PLACES or ELSEWHERE."""
    for cell in cells:
        given = replace(cell, plan=replace(cell.plan, flags=()))
        words, tune = [*given.experiment.flags(), *given.own_flags()], cell.study.tune
        words += [as_option(tune.axis), *tune.values] if tune else []
        for flag in (*PLACES, *ELSEWHERE):
            if is_given(words, flag):
                advice = ", or give it on the command line after --" if flag in ELSEWHERE else ""
                raise UserError(f"{cell.study.path}: {cell.name}: no study sets {flag}; take it out{advice}")


def check_layer_plans(cells: Iterable[Cell]) -> None:
    """UserError for a cell whose layer plan names no attention, or has another number of layers."""
    for cell in cells:
        given = [*cell.experiment.flags(), *cell.own_flags()]
        side = cell.plan_setting().removesuffix("_attention")
        plan, layers = option(given, f"--{side}-attention"), option(given, f"--{side}-layers")
        if plan:
            check_plan_words(plan, int(layers) if (layers or "").isdecimal() else None, cell.name)


def check_plan_words(plan: str, layers: int | None, where: str) -> None:
    """UserError if a plan does not fit a model with so many layers (None: unknown)."""
    allowed = [*MECHANISMS, *(path.stem for path in own_attention_files())]
    for item in read_plan(plan, layers, where, allowed):
        for name in item.layer:
            check_name(name, allowed, item.at)


def prune(cell: Cell) -> None:
    """Keep the log and the measured checkpoint, or all; remove the checkpoints of tuning."""
    if cell.tuning is not None:
        cell.run.keep_only(None)
    elif cell.study.keep != "all":
        cell.run.keep_only(cell.run.checkpoint(cell.study.checkpoint))
