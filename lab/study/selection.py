"""Which cells a command asks for, and what is wrong with its choices, flags and layer plans.

Nothing is imported for it that takes seconds; the process of a cell checks its plan again.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from glob import glob
from itertools import product
from typing import Any

from conventions import own_attention_files
from conventions.mechanisms import MECHANISMS
from conventions.plans import check_name, read_plan
from lab.errors import UserError
from lab.files import ROOT
from lab.run.recipe import (
    ELSEWHERE,
    NAME_FLAGS,
    OF_TRAINING,
    PLACES,
    as_option,
    check_owned,
    is_given,
    option,
)
from lab.study.cells import Cell, Plan
from lab.study.notation import nearest
from lab.study.schema import YAML, Choice, Study

OWN = {
    **{"--seed": "--seeds", "--save-dir": "--out"},
    **dict.fromkeys(("--restore-file", "--finetune-from-model"), "start in the study's YAML"),
    **dict.fromkeys(("--arch", "--task"), "another config in the study's YAML"),
}
"""Flags that differ from cell to cell, and what to use instead; an axis adds its own."""


def cells_of(plan: Plan, asked: Mapping[str, Sequence[str]], seeds: int) -> list[Cell]:
    """All cells of a study, seed by seed; `asked` has the choices given for an axis in place of its own.

    A combination that does not exist is left out. Raises UserError for an unknown choice, for one of which
    no combination exists, and for flags that differ from cell to cell.
    """
    study = plan.study
    chosen = [axis.choose(asked.get(name) or axis.usual) for name, axis in study.axes.items()]
    check_flags(plan, chosen)
    every = [Cell(plan, choices, 0) for choices in product(*chosen)]
    fixed = study.config and "{" not in study.config
    if fixed and not every[0].config.is_file():
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
    """UserError for a choice of one of the `asked` axes that no cell has.

    If no axis was asked for, or there is no cell at all, those of every axis are checked.
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
    whole = str(ROOT / study.config)
    pattern = re.escape(whole)
    for name, other in study.axes.items():
        known = "|".join(re.escape(choice.config) for choice in other.choices.values())
        words = "([^/]+)" if name == axis else f"(?:{known})" if other.closed else "[^/]+"
        pattern = pattern.replace(re.escape(f"{{{name}}}"), words)
    paths = glob(re.sub(r"\{\w+\}", "*", whole))
    found = {match[1] for path in paths if (match := re.fullmatch(pattern, path))}
    return sorted(name for name in found if not name.startswith("base"))


def check_flags(plan: Plan, chosen: Sequence[Sequence[Choice]]) -> None:
    """UserError for a flag of the user's that the chosen choices set."""
    ours = dict(OWN)
    for name, choices in zip(plan.study.axes, chosen, strict=True):
        for choice in choices:
            for key in setting_names(choice.settings, plan.study.axes):
                flags = ("--decoder-attention", "--encoder-attention") if key == "plan" else (as_option(key),)
                ours.update(dict.fromkeys(flags, f"--{name}"))
    if plan.study.tune:
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
            check_plan(plan, int(layers) if (layers or "").isdecimal() else None, cell.name)


def check_plan(plan: str, layers: int | None, where: str) -> None:
    """UserError for a plan that cannot be that of a model with so many layers, None for an unknown number."""
    allowed = [*MECHANISMS, *(path.stem for path in own_attention_files())]
    for item in read_plan(plan, layers, where, allowed):
        for name in item.layer:
            check_name(name, allowed, item.at)
