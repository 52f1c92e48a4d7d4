"""The settings of an experiment, checked against those that fairseq and the plugin have."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairseq.dataclass.configs import FairseqConfig
from fairseq.models import ARCH_MODEL_NAME_REGISTRY, MODEL_DATACLASS_REGISTRY
from fairseq.registry import REGISTRIES
from fairseq.tasks import TASK_DATACLASS_REGISTRY
from omegaconf import OmegaConf

import user_dir  # noqa: F401  (registers the models that a YAML may name)
from lab.errors import UserError, suggestion
from lab.run.recipe import COUNTS, NAME_FLAGS, Experiment, compose_experiment, option


def read_experiment(config: Path) -> Experiment:
    """Read a YAML; UserError if it is missing, damaged, or sets what fairseq does not have."""
    return checked_settings(compose_experiment(config))


def checked_settings(experiment: Experiment) -> Experiment:
    """The experiment; UserError if it sets what fairseq does not have."""
    own = OmegaConf.to_container(OmegaConf.load(experiment.config), resolve=False)
    own.pop("defaults", None)
    check_settings(experiment.config, own, experiment.settings)
    return experiment


def check_settings(config: Path, own: Any, settings: Any) -> None:
    """UserError for a setting that fairseq does not have, or that its base overrides."""
    groups = list(FairseqConfig.__dataclass_fields__)
    for group, values in settings.items():
        if group not in groups:
            raise UserError(f"{config}: {group} is not a group of settings{suggestion(group, groups)}")
        mine = own.get(group) or {}
        for found in (mine, values):
            if not isinstance(found, dict):
                raise UserError(f"{config}: {group} is {found!r}; write settings below it, as `name: value`")
        if group in NAME_FLAGS and not isinstance(values.get("_name"), str):
            raise UserError(f"{config}: {group} needs a _name")
        fields = group_fields(group, values.get("_name"))
        for key, value in values.items():
            if key != "_name" and key not in fields:
                near = suggestion(key, fields)
                raise UserError(f"{config}: {group}.{key} is not a setting of fairseq{near}")
            if key != "_name" and isinstance(value, bool) and fields[key].default is True:
                raise UserError(
                    f"{config}: {group}.{key} defaults to true and cannot be set in YAML; remove it"
                )
            check_type(f"{config}: {group}.{key}", key, value)
            wanted = mine.get(key, value)
            if wanted != value and not str(wanted).startswith("${"):
                raise UserError(
                    f"{config} sets {group}.{key} to {wanted} and its base, which has the last word, to "
                    f"{value}; take it out of one of them"
                )


def check_type(place: str, key: str, value: Any) -> None:
    """UserError if a setting that this project computes with is invalid; `place` names it."""
    if key == "update_freq":
        if not isinstance(value, list) or not value or any(type(x) is not int for x in value):
            raise UserError(f"{place} is {value!r}; write a list of whole numbers, such as [1]")
    elif key in COUNTS and type(value) is not int and not (value is None and COUNTS[key]):
        raise UserError(f"{place} is {value!r}; write a whole number")


def group_fields(group: str, name: str | None) -> dict[str, Any]:
    """The dataclass fields of a group; `name` chooses the model, task and so on."""
    registries = {one: about["dataclass_registry"] for one, about in REGISTRIES.items()}
    registries |= {"model": MODEL_DATACLASS_REGISTRY, "task": TASK_DATACLASS_REGISTRY}
    if group not in registries:
        return FairseqConfig.__dataclass_fields__[group].type.__dataclass_fields__
    kinds = registries[group]
    kind = kinds.get(ARCH_MODEL_NAME_REGISTRY.get(name, name) if group == "model" else name)
    if kind is None:
        raise UserError(f"no {group} is called {name!r}{suggestion(name, kinds)}")
    return kind.__dataclass_fields__


def check_arch(experiment: Experiment, extra: Sequence[str]) -> None:
    """UserError for an --arch of the user that lacks a setting of the YAML's model."""
    arch, model = option(extra, "--arch"), experiment.settings.get("model", {})
    if arch in (None, model.get("_name")):
        return
    if arch not in ARCH_MODEL_NAME_REGISTRY:  # which fairseq's parser refuses
        return
    fields = group_fields("model", arch)
    for key in model:
        if key != "_name" and key not in fields:
            raise UserError(
                f"--arch {arch} does not go with {experiment.config}, which sets {key} of {model['_name']}; "
                f"leave --arch out, or name a YAML of {arch}"
            )
