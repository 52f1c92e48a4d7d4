"""The plan of a training: settings, arguments and layer plan checked, before anything is written.

`planned` makes the plan of a training command; lab/study/worker.py makes a cell's plan.
"""

import shlex
import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from fairseq import options as fairseq_options
from fairseq import utils as fairseq_utils
from fairseq.dataclass.configs import FairseqConfig
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import ARCH_MODEL_NAME_REGISTRY, MODEL_DATACLASS_REGISTRY, MODEL_REGISTRY
from fairseq.registry import REGISTRIES
from fairseq.tasks import TASK_DATACLASS_REGISTRY
from omegaconf import OmegaConf

import user_dir  # noqa: F401  (registers the models that a YAML may name)
from lab.console import number_of
from lab.errors import UserError, suggestion
from lab.files import ROOT, shown_path
from lab.run.folder import LAST, RunFolder
from lab.run.kinds import KINDS, Kind
from lab.run.launch import Machines
from lab.run.recipe import (
    COUNTS,
    NAME_FLAGS,
    Experiment,
    compose_experiment,
    fairseq_arguments,
    fast_flags,
    option,
    shorter_warmup,
)
from user_dir.checks.schedules import check_schedule
from user_dir.checks.training import check_training
from user_dir.models.layer_plan import parse_layer_plan
from user_dir.models.stack import build_layer_attention

ON_THE_CPU = Machines(0)


@dataclass(frozen=True)
class Request:
    """A training command's request.

    `config` is a YAML, or the experiment that was read from it; without `data` and `save_dir` the YAML's data
    and a folder of runs/ are taken. `fresh` moves an earlier run in `save_dir` aside and starts at update 1.
    Model, task and data must be those of its checkpoints, but for the settings named in `allow_changed`.
    `fast` adds the flags of `fast_flags`. `here`: the run is on this machine.
    """

    config: Path | Experiment
    data: Path | None
    machines: Machines
    save_dir: Path | None = None
    extra: Sequence[str] = ()
    fresh: bool = False
    allow_changed: Sequence[str] = ()
    fast: bool = False
    here: bool = True


@dataclass(frozen=True)
class RunPlan:
    """A training: its experiment's name, its folder, and its arguments of fairseq-train, also as `read`.

    `data` are those of `data_folder` once they are `opened`; a task that draws its own has neither. With
    `in_process`, fairseq runs in this process instead of separate ones.
    """

    name: str
    folder: RunFolder
    arguments: list[str]
    read: Namespace
    data_folder: Path | None = None
    data: Any = None
    machines: Machines = ON_THE_CPU
    fresh: bool = False
    allow_changed: Sequence[str] = ()
    in_process: bool = False

    @property
    def kind(self) -> Kind | None:
        """The kind of its task; None if no command of the project trains it."""
        return KINDS.get(self.read.task)

    @property
    def last_update(self) -> int | None:
        """The last update, None for a run that ends by epochs."""
        return self.read.max_update or None

    def opened(self, splits: Sequence[str] = ()) -> "RunPlan":
        """The plan with its data opened; checks these splits, by default the ones that training reads.

        UserError if the data, or the checkpoint to start from, do not fit.
        """
        usual = ("train",) if self.read.disable_validation else ("train", "valid")
        data = self.kind.open_data(self.data_folder, splits or usual)
        for flag in ("--restore-file", "--finetune-from-model"):
            if (start := option(self.arguments, flag)) and start != LAST:
                self.kind.check_start(Path(start), data)
        self.kind.check_data(self.read, data)
        return replace(self, data=data)


def planned(asked: Request) -> RunPlan:
    """The plan of a training command, its data not opened; prints differences from the YAML."""
    experiment = asked.config if isinstance(asked.config, Experiment) else read_experiment(asked.config)
    machines, yaml = asked.machines, shown_path(experiment.config)
    data = data_of(asked, experiment)
    machines.check()
    extra = [*(fast_flags(experiment, machines.gpus, asked.extra) if asked.fast else []), *asked.extra]
    if asked.here:  # else this may be a login node
        machines.check_available()
    name = KINDS[experiment.get("task", "_name")].run_name(experiment.name, extra)
    save_dir = (asked.save_dir or ROOT / "runs" / name).absolute()
    check_arch(experiment, extra)
    shorter = shorter_warmup(experiment, extra)
    arguments = fairseq_arguments(experiment, data, machines, save_dir, [*shorter, *extra])
    if asked.allow_changed:
        arguments += ["--allow-changed", ",".join(asked.allow_changed)]
    read = checked(arguments, here=asked.here)
    if experiment.get("common", "fp16") and not (read.fp16 or read.bf16 or read.amp or machines.quiet):
        print(f"note: float32 in place of the fp16 of {yaml}, which needs a GPU", file=sys.stderr)
    if shorter and not machines.quiet:
        warmup = experiment.get("lr_scheduler", "warmup_updates")
        run = number_of(read.max_update, "updates")
        note = f"note: {' '.join(shorter)} in place of the {warmup} of {yaml}: the run has {run}"
        print(note, file=sys.stderr)
    words = [f"{key}={value}" for key, value in machines.environment().items()]
    print(shlex.join([*words, str(Path(sys.prefix, "bin", "fairseq-train")), *arguments]))
    return RunPlan(
        experiment.name,
        RunFolder(save_dir),
        arguments,
        read,
        data,
        machines=machines,
        fresh=asked.fresh,
        allow_changed=asked.allow_changed,
    )


def data_of(asked: Request, experiment: Experiment) -> Path:
    """The prepared folder named on the command line, else in the YAML."""
    folder = asked.data or experiment.data_folder()
    if folder is None:
        raise UserError(f"{shown_path(experiment.config)} names no data folder; name one after it")
    return folder.absolute()


def check_task(command: str, config: Path, experiment: Experiment, given: str | None = None) -> None:
    """UserError for the YAML of a task, or one `given` in its place, that another command trains."""
    task = experiment.get("task", "_name")
    if task not in KINDS or KINDS[task].command != command:
        right = f"; train it with {KINDS[task].command}" if task in KINDS else ""
        raise UserError(f"{config} is not for {command}: its task is {task}{right}")
    if given and (given not in KINDS or KINDS[given].command != command):
        right = f"a YAML of it and {KINDS[given].command}" if given in KINDS else "fairseq-train"
        raise UserError(f"--task {given} is not for {command}; leave it out, or train with {right}")


def parsed(arguments: Sequence[str]) -> Namespace:
    """The arguments as `fairseq-train` reads them, before anything is written; UserError for a wrong one."""
    fairseq_utils.import_user_module(Namespace(user_dir=str(ROOT / "user_dir")))
    parser = fairseq_options.get_training_parser()
    parser.prog = "fairseq-train"
    return fairseq_options.parse_args_and_arch(parser, list(arguments))


def checked(arguments: Sequence[str], here: bool = True) -> Namespace:
    """The arguments as `fairseq-train` reads them, with every check that needs no data; raises UserError.

    `here`: the run is on this machine.
    """
    read = parsed(arguments)
    composed = convert_namespace_to_omegaconf(read)
    check_training(composed, here=here)
    check_schedule(composed)
    check_plan(read, composed.model)
    return read


def check_plan(read: Namespace, model: Any) -> None:
    """UserError for an invalid layer plan or option of its attentions, before anything is written.

    `model` is its configuration. Options are checked unless the data decide the number of positions. In
    fairseq's convolutional model, options of these names mean something else.
    """
    preset = MODEL_DATACLASS_REGISTRY.get(read.arch, Namespace)()
    for side in ("decoder", "encoder"):
        names = (f"{side}_attention", f"{side}_layers")
        plan, layers = (getattr(read, name, getattr(preset, name, None)) for name in names)
        kind, causal = MODEL_REGISTRY[read.arch], side == "decoder"
        if not isinstance(layers, int) or not (plan or hasattr(kind, "default_plan")):
            continue
        plan = parse_layer_plan(plan or kind.default_plan(layers), layers, f"--{side}-attention", causal)
        positions = getattr(model, "max_target_positions" if causal else "max_positions", None)
        positions = positions or getattr(read, "tokens_per_sample", None)
        if hasattr(kind, "default_plan") and isinstance(positions, int):
            check_attentions(plan, model, side, positions)


def check_attentions(plan: Sequence[tuple[str, ...]], model: Any, side: str, positions: int) -> None:
    """UserError for an option with which an attention of the plan cannot be built."""
    with torch.random.fork_rng(devices=()):
        for layer in dict.fromkeys(plan):
            build_layer_attention(model, side, layer, (plan.index(layer), len(plan)), positions)


def read_experiment(config: Path) -> Experiment:
    """Read a YAML; UserError if it is missing or damaged, or has a setting unknown to fairseq."""
    return checked_settings(compose_experiment(config))


def checked_settings(experiment: Experiment) -> Experiment:
    """The experiment; UserError for a setting unknown to fairseq."""
    own = OmegaConf.to_container(OmegaConf.load(experiment.config), resolve=False)
    own.pop("defaults", None)
    check_settings(experiment.config, own, experiment.settings)
    return experiment


def check_settings(config: Path, own: Any, settings: Any) -> None:
    """UserError for a setting unknown to fairseq, or overridden by the base."""
    groups = list(FairseqConfig.__dataclass_fields__)
    for group, values in settings.items():
        if group not in groups:
            raise UserError(f"{config}: {group} is not a group of settings{suggestion(group, groups)}")
        mine = own.get(group) or {}
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
                    f"{value}; remove it from one of them"
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
    if arch not in ARCH_MODEL_NAME_REGISTRY:  # fairseq's parser refuses it
        return
    fields = group_fields("model", arch)
    for key in model:
        if key != "_name" and key not in fields:
            raise UserError(
                f"--arch {arch} does not go with {experiment.config}, which sets {key} of {model['_name']}; "
                f"leave --arch out, or name a YAML of {arch}"
            )
