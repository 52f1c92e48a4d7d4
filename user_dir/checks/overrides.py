"""Whether a checkpoint has the settings that a command or a call gives other values."""

import os
from argparse import Namespace
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from fairseq.registry import REGISTRIES

from ..errors import UserError
from .checkpoints import architecture, checkpoint_files, read_safely
from .options import nearest
from .settings import read_overrides
from .tasks import settings_of

HUB = {
    *("archive_map", "bpe", "bpe_codes", "bpe_merges", "bpe_vocab", "data", "data_name_or_path"),
    *("generation_args", "is_vocoder", "load_checkpoint_heads", "sentencepiece_model", "tokenizer"),
    "user_dir",
}
"""Arguments of fairseq's `from_pretrained` that need not be settings of the checkpoint."""


def check_overrides(cfg: Any) -> None:
    """UserError for a name in `--model-overrides` that is no setting of the checkpoints of `--path`.

    fairseq ignores it. Checkpoints in several parts are not looked at.
    """
    overrides = read_overrides(cfg.common_eval.model_overrides)
    whole = cfg.checkpoint.checkpoint_shard_count == 1 and not cfg.checkpoint.checkpoint_suffix
    if overrides and whole and cfg.common_eval.path:
        for path in checkpoint_files([cfg.common_eval.path]):
            check_names("--model-overrides", overrides, path)


def check_changes(folder: str, checkpoint_file: str, changes: Mapping[str, Any]) -> None:
    """The same for the arguments of `from_pretrained`, where its folder and files are there."""
    for name in checkpoint_file.split(os.pathsep) if changes.keys() - HUB else ():
        if os.path.isfile(path := os.path.join(folder, name)):
            check_names("from_pretrained", changes, path, HUB)


def check_names(given_to: str, overrides: Mapping[str, Any], path: str, free: Collection[str] = ()) -> None:
    """UserError for a name in `overrides` that is neither a setting of a checkpoint nor `free`.

    Args:
        given_to: what they were given to, for the message.
        overrides: values by the name of a setting, or of a group, which has a mapping of its own.
        path: of the checkpoint.
        free: other names that may be given.
    """
    groups = _groups(path)
    names = {*free, *groups, *(name for group in groups.values() for name in group)}
    for name, value in overrides.items():
        names.update(_fields(REGISTRIES.get(name, {}).get("dataclass_registry", {}), value))
    for name, value in overrides.items():
        inner = value if name in groups and isinstance(value, Mapping) else ()
        for one, known in [(name, names), *((one, groups[name]) for one in inner)]:
            if one not in known:
                near = ", ".join(nearest(one, sorted(known)))
                raise UserError(
                    f"{given_to} has {one!r}, which is no setting of {path}; the nearest are {near}"
                )


def _groups(path: str) -> dict[str, Collection[str]]:
    """The names of the settings in each group of a checkpoint.

    A namespace, as old checkpoints hold, also takes settings that its model has got since.
    """
    state, groups = read_safely(Path(path)), {}
    arch = architecture(path, state)
    since = getattr(settings_of(arch), "__dataclass_fields__", ())
    for name, group in (state.get("cfg") or {"args": state["args"]}).items():
        if isinstance(group, Namespace):
            groups[name] = {*vars(group), *(since if name in ("args", "model") else ())}
        else:
            groups[name] = set(group) if isinstance(group, Mapping) else set()
    return groups


def _fields(dataclasses: Mapping[str, Any], name: object) -> Collection[str]:
    """The fields of the dataclass of this name, if there is one."""
    found = dataclasses.get(name) if isinstance(name, str) else None
    return getattr(found, "__dataclass_fields__", ())
