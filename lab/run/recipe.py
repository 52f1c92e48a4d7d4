"""An experiment's YAML: read the way hydra reads it, and written as flags of `fairseq-train`.

`configs/<experiment>/<architecture>.yaml` says `defaults: [_self_, base]`: it names the
architecture, and base.yaml beside it holds what all architectures of the experiment share. The
order matters to `fairseq-hydra-train`, which fills the named file up with fairseq's defaults: base
comes after it and has the last word. A setting that differs in both files is an error here.

A file that begins with `# @package _global_` is found from the folder above its own, so that its base can be
another experiment's (`/roberta/base@_global_`): `--config-dir configs --config-name ablations/NAME`.

Reading a YAML needs neither torch nor fairseq; `plan.py` checks its settings against fairseq's.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException, MissingConfigException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from lab.errors import UserError, suggestion
from lab.files import ROOT
from lab.run.launch import Machines

Settings = dict[str, dict[str, Any]]

# The flag that names the choice of a group; other groups have none.
NAME_FLAGS = {
    "task": "--task",
    "model": "--arch",
    "criterion": "--criterion",
    "optimizer": "--optimizer",
    "lr_scheduler": "--lr-scheduler",
}

# Other names of a flag, which fairseq takes as well.
ALIASES = {
    "--arch": ("-a",),
    "--batch-size": ("--max-sentences",),
    "--batch-size-valid": ("--max-sentences-valid",),
    "--device-id": ("--local_rank",),
}

# The place of a run and its processes, which a command that wraps fairseq-train sets itself.
PLACES = ("--user-dir", "--save-dir", "--checkpoint-suffix", "--distributed-init-method")
OF_TRAINING = (
    *PLACES,
    *("--device-id", "--distributed-world-size", "--distributed-rank", "--distributed-port"),
    *("--distributed-no-spawn", "--distributed-num-procs", "--nprocs-per-node"),
)
# They write elsewhere or talk to other machines: for the command line alone, where the user gives them.
ELSEWHERE = (
    *("--log-file", "--tensorboard-logdir", "--wandb-project", "--azureml-logging", "--aim-repo"),
    *("--use-plasma-view", "--plasma-path"),
)

COMPILING = ("chunked_cross_entropy", "chunked_masked_lm")  # criteria with --compile
# Settings that are computed with here, and whether they may be empty, which leaves fairseq's default; of the
# others fairseq's parser sees the type.
COUNTS = {"batch_size": True, "distributed_world_size": False, "warmup_updates": True}
RESOLVER = re.compile(r"\$\{[^}]*:")
# Switches of the group `common`, of which a training has one at most.
PRECISIONS = ("fp16", "memory_efficient_fp16", "bf16", "memory_efficient_bf16", "amp")
WARMUP = "--warmup-updates"
# Options of fairseq's schedules that are numbers of updates.
OF_SCHEDULES = (
    *(WARMUP, "--total-num-update", "--lr-period-updates", "--lr-deacy-period"),
    *("--warmup-steps", "--hold-steps", "--decay-steps"),
)


@dataclass(frozen=True)
class Experiment:
    """A YAML's settings, by fairseq's groups (`optimization`, `model`, ...), all files merged."""

    config: Path
    settings: Settings

    @property
    def name(self) -> str:
        """`<experiment>/<architecture>`, as in `configs/`."""
        return f"{self.config.parent.name}/{self.config.stem}"

    def get(self, group: str, key: str, default: Any = None) -> Any:
        """One setting, `default` if the YAML lacks it."""
        return self.settings.get(group, {}).get(key, default)

    def data_folder(self) -> Path | None:
        """The prepared corpus the YAML names; a relative path counts from the project's root."""
        data = self.get("task", "data")
        return ROOT / str(data) if data else None

    def changed(self, settings: Settings) -> "Experiment":
        """A copy with `settings` merged in."""
        groups = {group: {**self.settings.get(group, {}), **values} for group, values in settings.items()}
        return replace(self, settings={**self.settings, **groups})

    def flags(self, without: Collection[str] = ()) -> list[str]:
        """The settings as flags of `fairseq-train`, without those of the machines and those in `without`."""
        return [word for group in self.settings for word in self._group_flags(group, without)]

    def _group_flags(self, group: str, without: Collection[str]) -> Iterator[str]:
        settings = self.settings[group]
        if "_name" in settings and group in NAME_FLAGS:
            yield from (NAME_FLAGS[group], settings["_name"])
        for key, value in settings.items():
            if key in ("_name", "data", "update_freq", "distributed_world_size", *without):
                continue  # a name, the positional argument, and what depends on the machines
            yield from as_flag(key, value)


def compose_experiment(config: Path) -> Experiment:
    """Read a YAML as hydra composes it, its settings not compared with fairseq's; UserError if it cannot."""
    if config.is_dir():
        inside = ", ".join(sorted(path.name for path in config.glob("*.yaml"))) or "none"
        raise UserError(f"CONFIG is the folder {config}; name one of its YAML files: {inside}")
    if not config.is_file():
        known = [str(path.relative_to(ROOT)) for path in ROOT.glob("configs/*/*.yaml")]
        near = get_close_matches(str(config), known, n=3, cutoff=0) or ["none"]
        raise UserError(f"no configuration file {config}; the nearest below {ROOT} are {', '.join(near)}")
    config = config.resolve()
    if config.suffix != ".yaml":
        raise UserError(
            f"{config} is not a configuration, since its name does not end in .yaml; name one of configs/"
        )
    GlobalHydra.instance().clear()
    try:
        folder, name = hydra_name(config)
        with initialize_config_dir(str(folder), version_base="1.1"):
            composed = compose(name)
        check_interpolations(config, OmegaConf.to_container(composed, resolve=False))
        own = OmegaConf.to_container(OmegaConf.load(config), resolve=False)
        settings = OmegaConf.to_container(composed, resolve=True)
    except MissingConfigException as error:
        raise UserError(missing_base(config, folder, str(error.missing_cfg_file))) from None
    except (HydraException, OmegaConfBaseException, YAMLError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{config} cannot be read: {reason}") from None
    own.pop("defaults", None)
    for found in (own, settings):
        check_mappings(config, found)
    return Experiment(config, {group: values or {} for group, values in settings.items()})


def check_mappings(config: Path, settings: Mapping[str, Any]) -> None:
    """UserError unless each group of settings is a mapping, or empty as in an unfinished YAML."""
    for group, values in settings.items():
        if values is not None and not isinstance(values, dict):
            raise UserError(f"{config}: {group} is {values!r}; write settings below it, as `name: value`")


def check_interpolations(config: Path, value: Any) -> None:
    """UserError for an interpolation that reads from outside, such as `${oc.env:HOME}`."""
    for one in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        check_interpolations(config, one)
    if isinstance(value, str) and RESOLVER.search(value):
        raise UserError(f"{config}: {value!r} reads from outside; name another setting, as ${{group.name}}")


def hydra_name(config: Path) -> tuple[Path, str]:
    """hydra's `--config-dir` and `--config-name` for a YAML."""
    if config.read_text(encoding="utf-8").startswith("# @package _global_"):
        return config.parent.parent, f"{config.parent.name}/{config.stem}"
    return config.parent, config.stem


def missing_base(config: Path, folder: Path, base: str) -> str:
    """The message for a missing file among the `defaults` of a YAML or of its base."""
    name = base.removesuffix(".yaml").lstrip("/")
    known = [str(path.relative_to(folder).with_suffix("")) for path in sorted(folder.rglob("*.yaml"))]
    hint = suggestion(name, known) or "; correct the name"
    return f"{config}: its defaults name the base {folder / name}.yaml, which is missing{hint}"


def as_option(key: str) -> str:
    """A setting as a flag."""
    return f"--{key.replace('_', '-')}"


def as_flag(key: str, value: Any, default: Any = False) -> list[str]:
    """A setting as a flag of `fairseq-train`; a switch is given if it differs from its `default`."""
    flag = as_option(key)
    if isinstance(value, bool):
        return [flag] if value != bool(default) else []
    if value is None:
        return []
    if isinstance(value, list):
        value = ",".join(map(str, value))
    return [flag, str(value)]


def fairseq_arguments(
    experiment: Experiment, data: Path | None, machines: Machines, save_dir: Path, extra: Sequence[str]
) -> list[str]:
    """The arguments of `fairseq-train`; `extra`, which the user gave, comes last and wins.

    `data` is None for a task that draws its own.
    """
    arguments = [] if data is None else [str(data)]
    arguments += ["--user-dir", str(ROOT / "user_dir")]
    arguments += [*experiment.flags(replaced_precision(experiment, machines.gpus, extra)), *machines.flags()]
    if option(extra, "--update-freq") is None:
        steps, size = shared_batch(experiment, machines.processes, option(extra, "--batch-size") is None)
        arguments += ["--update-freq", ",".join(map(str, steps))]
        arguments += [] if size is None else ["--batch-size", str(size)]
    curves = save_dir / "tensorboard"
    arguments += ["--save-dir", str(save_dir), "--tensorboard-logdir", str(curves)]
    return [*arguments, *extra]


def option(arguments: Sequence[str], flag: str) -> str | None:
    """The value that counts of a flag given as `--flag value` or `--flag=value`: the last one.

    The flag may be there under another of its names.
    """
    value, names = None, names_of(flag)
    for i, word in enumerate(arguments):
        if word in names:
            value = arguments[i + 1] if i + 1 < len(arguments) else None
        elif _names(word, flag):
            value = word.partition("=")[2] if word.startswith("--") else word[2:].removeprefix("=")
    return value


def names_of(flag: str) -> tuple[str, ...]:
    """A flag and its other names."""
    return (flag, *ALIASES.get(flag, ()))


def is_given(words: Sequence[str], flag: str) -> bool:
    """Whether `flag`, or another of its names, is among the words of a command line, with a value or not."""
    return any(_names(word, flag) for word in words)


def _names(word: str, flag: str) -> bool:
    """Whether a word is `flag`, also with its value in the same word (`--flag=value`, `-fvalue`)."""
    short = any(len(name) == 2 and word.startswith(name) for name in names_of(flag))
    return short or word.partition("=")[0] in names_of(flag)


def given_settings(record: Mapping[str, Any]) -> Settings:
    """The settings of a record's YAML, with the values that its study gave instead as flags."""
    found = {group: dict(values or {}) for group, values in record["settings"].items()}
    for values in found.values():
        for key in values:
            if is_given(record["own_flags"], flag := as_option(key)):
                given = option(record["own_flags"], flag) or "--"
                values[key] = True if given.startswith("--") else number_or_word(given)
    return found


def number_or_word(text: str) -> Any:
    """The value of a flag; plain YAML reads 1e-05 as a word."""
    try:
        return float(text) if "e-" in text else yaml.safe_load(text)
    except ValueError:
        return text


def check_owned(command: str, words: Sequence[str], owned: Collection[str]) -> None:
    """UserError if `words` has a flag that `command` sets itself and would replace."""
    for flag in owned:
        if is_given(words, flag):
            raise UserError(f"{flag} is set by {command} itself; leave it out, see {command} --help")


def shorter_warmup(experiment: Experiment, extra: Sequence[str]) -> list[str]:
    """`--warmup-updates` for a --max-update of the user that is less than the YAML's warm-up.

    A tenth of the run, at least two updates if it has more; the user's own schedule stays as it is.
    """
    last, warmup = option(extra, "--max-update"), experiment.get("lr_scheduler", "warmup_updates") or 0
    own = option(extra, "--warmup-updates") or option(extra, "--lr-scheduler")
    if own or not last or not last.isdecimal() or not 0 < int(last) < warmup:
        return []
    return ["--warmup-updates", str(max(1, min(int(last) - 1, max(2, int(last) // 10))))]


def shortened(experiment: Experiment, flags: Sequence[str], updates: int) -> list[str]:
    """The flags of a run of fewer `updates`: the whole schedule, shortened in proportion.

    A warm-up keeps two updates, the fewest of `one_cycle`, if the run has more.
    """
    given = [*experiment.flags(), *flags]
    last = option(given, "--max-update") or ""
    share = updates / int(last) if last.isdecimal() and int(last) else 1.0
    words = ["--max-update", str(updates)]
    for flag in OF_SCHEDULES:
        length = option(given, flag) or ""
        if length.isdecimal() and int(length):
            fewest = min(2, int(length), updates - 1) if flag == WARMUP else 1
            words += [flag, str(max(1, fewest, round(share * int(length))))]
    return words


def chooses_precision(extra: Sequence[str]) -> bool:
    """Whether the user's flags have a switch of precision."""
    return any(is_given(extra, as_option(name)) for name in PRECISIONS)


def replaced_precision(experiment: Experiment, gpus: int, extra: Sequence[str]) -> list[str]:
    """The YAML's switches of precision to leave out: a switch of the user's replaces them all.

    On the CPU fp16 is left out, unless its gradients are those that fairseq can scale there.
    """
    own = [name for name in PRECISIONS if experiment.get("common", name)]
    if chooses_precision(extra):
        return own
    not_flat = experiment.get("common", "fp16_no_flatten_grads") or is_given(extra, "--fp16-no-flatten-grads")
    return own if own == ["fp16"] and not gpus and not not_flat else []


def fast_flags(experiment: Experiment, gpus: int, extra: Sequence[str]) -> list[str]:
    """The flags that --fast adds; the user's flags `extra` come after them."""
    flags = []
    optimizer = option(extra, "--optimizer") or experiment.get("optimizer", "_name")
    if optimizer == "adam":
        flags += ["--optimizer", "adamw_fused"]
    if not gpus:
        return flags
    if not chooses_precision(extra):
        flags.append("--bf16")
    criterion = option(extra, "--criterion") or experiment.get("criterion", "_name")
    return [*flags, "--compile"] if criterion in COMPILING else flags


def shared_batch(
    experiment: Experiment, processes: int, divisible: bool = True
) -> tuple[list[int], int | None]:
    """`--update-freq` and `--batch-size` for `processes` GPUs (or CPU processes) with the YAML's batch.

    The YAML's `update_freq` is for its own `distributed_world_size`; their product is kept. Where it cannot
    be shared, a process gets a part of the samples of a batch if they are counted and `divisible`; None
    leaves their number as it is.
    """
    reference = experiment.get("distributed_training", "distributed_world_size", 1)
    wanted = [steps * reference for steps in experiment.get("optimization", "update_freq", [1])]
    size = experiment.get("dataset", "batch_size")
    if not divisible or not size or experiment.get("dataset", "max_tokens"):
        size = 1
    for part in range(1, size + 1):
        if size % part == 0 and not any(total * part % processes for total in wanted):
            return [total * part // processes for total in wanted], size // part if part > 1 else None
    possible = [n for n in range(1, min(wanted) * size + 1) if not any(total * size % n for total in wanted)]
    raise UserError(
        f"{processes} processes cannot share the batch of {experiment.name} evenly; take "
        f"{', '.join(map(str, possible))}, or choose the batch yourself with --update-freq"
    )
