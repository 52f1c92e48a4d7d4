"""The cells of a study: one training and its measurement each, for a choice of every axis and a seed."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from glob import glob
from itertools import product
from pathlib import Path
from typing import Any

from pipeline.data.prepared import has_valid, identify, same_data
from pipeline.errors import UserError
from pipeline.files import FINGERPRINT, ROOT, fingerprint, read_json, shown_path
from pipeline.study.declaration import YAML, Choice, Study
from pipeline.study.hooks import hooks_of
from pipeline.study.keys import nearest
from pipeline.study.start import start_flags, start_mark
from pipeline.training.launch import Machines
from pipeline.training.recipe import (
    NAME_FLAGS,
    Experiment,
    as_flag,
    compose_experiment,
    fairseq_arguments,
    option,
)

DECODERS = ("language_modeling", "carried_language_modeling", "copy", "pixels")
"""Tasks whose models have a `--decoder-attention`; the others have a `--encoder-attention`."""
OWN = {"--seed": "--seeds", "--save-dir": "--out"}
"""Flags that differ from cell to cell, and the option to use instead; an axis adds its own."""
ALIASES = {"--batch-size": ("--max-sentences",)}


@dataclass(frozen=True)
class Plan:
    """What a command asks of a study: where its cells go, the data, and flags for all of them.

    `data` is None for the folders that the YAMLs name; `start` is the checkpoint that the command names.
    """

    study: Study
    out: Path
    data: Path | None
    flags: tuple[str, ...]
    start: Path | None = None


@dataclass(frozen=True)
class Cell:
    """One cell; `tuning` is the value tried of the tuned setting, `chosen` the one that tuning has chosen."""

    plan: Plan
    choices: tuple[Choice, ...]
    seed: int
    tuning: str | None = None
    chosen: str | None = None

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
        """What identifies it in its record."""
        tried = {} if self.tuning is None else {"tuning": {self.tuned_axis: self.tuning}}
        return {**self.values, "seed": self.seed, **tried}

    @property
    def tuned_axis(self) -> str:
        """The setting that is tuned."""
        assert self.study.tune is not None
        return self.study.tune.axis

    @property
    def name(self) -> str:
        """What it is called in messages."""
        tried = [] if self.tuning is None else [f"{self.tuned_axis} {self.tuning}"]
        return ", ".join([*self.values.values(), *tried, f"seed {self.seed}"])

    @property
    def folder(self) -> Path:
        """Where it trains."""
        tried = [] if self.tuning is None else [f"{self.tuned_axis}-{self.tuning}"]
        return self.plan.out.joinpath(*self.values.values(), *tried, f"seed{self.seed}")

    @property
    def record_path(self) -> Path:
        """Its record, beside the folder."""
        return self.folder.with_name(f"{self.folder.name}.json")

    @property
    def config(self) -> Path:
        """The YAML it trains from."""
        return self.filled_in(self.study.config)

    def filled_in(self, path: str) -> Path:
        """A path of the study's YAML with the choices in place of `{axis}`."""
        names = {axis: choice.config for axis, choice in zip(self.study.axes, self.choices, strict=True)}
        return ROOT / path.format(**names)

    @cached_property
    def experiment(self) -> Experiment:
        """The settings of the YAML and those of the choices, not compared with fairseq's."""
        experiment = _composed(self.config, self.config.stat().st_mtime_ns)
        given = [*self.study.settings.items(), *(x for one in self.choices for x in self.settings_of(one))]
        for key, value in given:
            if key == YAML:
                experiment = experiment.changed(value)
        for key, value in given:
            if value is False:  # no flag of fairseq turns a switch off
                on = [name for name in experiment.settings if experiment.get(name, key) is True]
                experiment = experiment.changed({name: {key: False} for name in on})
        return experiment

    def own_flags(self) -> list[str]:
        """What is added to the YAML, the user's flags included."""
        settings = list(self.study.settings.items())
        settings += [pair for choice in self.choices for pair in self.settings_of(choice) if pair[0] != YAML]
        words = []
        for key, value in settings:
            words += as_flag(self.plan_setting() if key == "plan" else key, value)
        words += self.plan.flags
        if (value := self.tuning if self.tuning is not None else self.chosen) is not None:
            words += as_flag(self.tuned_axis, value)
        if self.tuning is not None:
            words += shortened(self.experiment, words, self.study.tune.updates)
        return [*words, "--seed", str(self.seed)]

    def settings_of(self, choice: Choice) -> Iterator[tuple[str, Any]]:
        """The settings of a choice; those below the name of another axis depend on the choice of that one."""
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
        """Those of `fairseq-train`, on one GPU or the CPU; without a valid split nothing is validated."""
        data, words = self.data_folder(), [*start_flags(self), *self.own_flags(), *self.data_flags()]
        if data and data.is_dir() and not has_valid(identify(data)):
            words.append("--disable-validation")
        return fairseq_arguments(self.experiment, data, Machines(1 if gpu else 0), self.folder, words)

    def data_flags(self) -> list[str]:
        """Flags that follow from the prepared data, such as the number of classes; the study's hooks know.

        The user's own flags win, but for --max-update, which the hooks have read.
        """
        flags = getattr(hooks_of(self.study.hooks), "data_flags", None)
        words, wins = [], False
        for word in flags(self) if flags else []:
            if word.startswith("--"):
                wins = word != "--max-update" and is_given(self.plan.flags, word)
            words += [] if wins else [word]
        return words

    def updates(self) -> int:
        """The last update of its training, 0 if it ends by epochs."""
        given = [*self.experiment.flags(), *self.own_flags(), *self.data_flags()]
        last = option(given, "--max-update") or ""
        return int(last) if last.isdecimal() else 0

    def fingerprint(self) -> str:
        """A short hash of settings, start and named data, which decide its result.

        `same_data` compares what the data are.
        """
        named = shown_path(self.filled_in(self.study.data)) if self.study.data else None
        further = [one for one in (start_mark(self), named) if one]
        return fingerprint([self.experiment.settings, self.own_flags(), *further])

    def record(self) -> dict[str, Any] | None:
        """Its record if it is finished; UserError if one of other settings or data is in its place."""
        if not self.record_path.is_file():
            return None
        record = read_json(self.record_path)
        found, wanted = (record.get(FINGERPRINT) if isinstance(record, dict) else None), self.fingerprint()
        if found != wanted:
            raise UserError(
                f"{shown_path(self.record_path)} was made with other settings (fingerprint {found} instead "
                f"of {wanted}); move it away or choose another --out"
            )
        folder = self.data_folder()
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


def shortened(experiment: Experiment, flags: Sequence[str], updates: int) -> list[str]:
    """The flags of a run of fewer `updates`: the whole schedule, shortened in proportion."""
    given = [*experiment.flags(), *flags]
    last = option(given, "--max-update") or ""
    share = updates / int(last) if last.isdecimal() and int(last) else 1.0
    words = ["--max-update", str(updates)]
    for flag in ("--warmup-updates", "--total-num-update"):
        if (length := option(given, flag) or "").isdecimal():
            words += [flag, str(max(1, round(share * int(length))))]
    return words


def cells_of(plan: Plan, asked: Mapping[str, Sequence[str]], seeds: int) -> list[Cell]:
    """All cells of a study, seed by seed; `asked` has the choices given for an axis in place of its own.

    A combination that does not exist is left out. Raises UserError for an unknown choice, for one of which
    no combination exists, and for flags that differ from cell to cell.
    """
    study = plan.study
    chosen = [axis.choose(asked.get(name) or axis.usual) for name, axis in study.axes.items()]
    check_flags(plan, chosen)
    combinations = [cell for choices in product(*chosen) if (cell := Cell(plan, choices, 0)).exists()]
    check_covered(study, chosen, combinations, [name for name, words in asked.items() if words])
    if not combinations:
        raise UserError(f"{study.path}: no combination of these choices has a YAML and settings")
    return [
        replace(cell, seed=first_seed(cell) + number)
        for number in range(seeds)
        for cell in combinations
        if all(choice.seeds is None or number < choice.seeds for choice in cell.choices)
    ]


def first_seed(cell: Cell) -> int:
    """The seed of the YAML, from which a study counts."""
    return int(cell.experiment.get("common", "seed", 1))


def check_covered(
    study: Study, chosen: Sequence[Sequence[Choice]], cells: Sequence[Cell], asked: Collection[str]
) -> None:
    """UserError for a choice of one of the `asked` axes that no cell has.

    If no axis was asked for, or there is no cell at all, those of every axis are checked.
    """
    for (name, axis), choices in zip(study.axes.items(), chosen, strict=True):
        if cells and asked and name not in asked:
            continue
        for choice in choices:
            if any(cell.values[name] == choice.name for cell in cells):
                continue
            known = sorted(known_values(study, name)) if axis.placeholder else [choice.name]
            if not known:
                raise UserError(f"{study.path}: no YAML fits config {study.config} with these choices")
            if choice.name not in known:
                hint = nearest(choice.name, known)
                raise UserError(f"--{name} {choice.name}: {study.config} has no such YAML{hint}")
            if name in asked:
                raise UserError(
                    f"--{name} {choice.name}: {study.name} has no settings for it with the other choices"
                )


def known_values(study: Study, axis: str) -> Iterator[str]:
    """The values of a placeholder for which there are YAMLs."""
    whole = str(ROOT / study.config)
    pattern = re.escape(whole)
    for name, other in study.axes.items():
        known = "|".join(re.escape(choice.config) for choice in other.choices.values())
        words = "([^/]+)" if name == axis else f"(?:{known})" if other.closed else "[^/]+"
        pattern = pattern.replace(re.escape(f"{{{name}}}"), words)
    for path in glob(re.sub(r"\{\w+\}", "*", whole)):
        match = re.fullmatch(pattern, path)
        if match and not match[1].startswith("base"):
            yield match[1]


def check_flags(plan: Plan, chosen: Sequence[Sequence[Choice]]) -> None:
    """UserError for a flag of the user's that the chosen choices set."""
    ours = dict(OWN)
    for name, choices in zip(plan.study.axes, chosen, strict=True):
        for choice in choices:
            for key in setting_names(choice, plan.study):
                flags = ("--decoder-attention", "--encoder-attention") if key == "plan" else (as_option(key),)
                ours.update(dict.fromkeys(flags, f"--{name}"))
    if plan.study.tune:
        ours[as_option(plan.study.tune.axis)] = "tune in the study's YAML"
    for flag, instead in ours.items():
        if any(is_given(plan.flags, one) for one in (flag, *ALIASES.get(flag, ()))):
            raise UserError(f"{flag} differs from cell to cell; use {instead}")


def is_given(words: Sequence[str], flag: str) -> bool:
    """Whether `flag` is among the words of a command line, as `--flag value`, `--flag=value` or a switch."""
    return any(word == flag or word.startswith(f"{flag}=") for word in words)


def setting_names(choice: Choice, study: Study) -> Iterator[str]:
    """The settings that a choice may change."""
    for key, value in choice.settings.items():
        if key in study.axes and isinstance(value, dict):
            yield from (name for settings in value.values() for name in flag_names(settings or {}))
        else:
            yield from flag_names({key: value})


def flag_names(settings: Mapping[str, Any]) -> Iterator[str]:
    """Settings by the names of their flags, those of the key `yaml` included."""
    for key, value in settings.items():
        if key != YAML:
            yield key
            continue
        for group, values in value.items():
            yield from (NAME_FLAGS[group].removeprefix("--") if name == "_name" else name for name in values)


def as_option(key: str) -> str:
    """A setting as a flag."""
    return f"--{key.replace('_', '-')}"
