"""fairseq's checkpoints: their content, and how much of it is trusted."""

import contextlib
import errno
import math
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import torch
from fairseq import checkpoint_utils, file_utils, hub_utils
from fairseq.file_io import PathManager
from fairseq.models import BaseFairseqModel
from fairseq.models.roberta import RobertaModel
from omegaconf.errors import ValidationError

from conventions.files import replacing

from ..checks.checkpoints import (
    UNREADABLE,
    architecture,
    check_finite,
    check_heads,
    check_tied,
    checkpoint_files,
    difference,
    heads_in,
    own_positions,
    read_safely,
)
from ..checks.dictionaries import check_labels
from ..checks.overrides import check_changes
from ..checks.same_settings import OURS
from ..checks.tasks import check_model_of_task
from ..errors import UserError
from . import stopping, train_loop
from .data import setting
from .options import first_line
from .replacing import replaces
from .run_state import make_up_for_plateau

LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")


def apply() -> None:
    """The wrappers of `checkpoint_utils` and of the one function that copies checkpoints."""

    @replaces(checkpoint_utils, "save_checkpoint")
    def save_checkpoint(save, cfg, trainer, epoch_itr, val_loss):
        saved = save(cfg, trainer, epoch_itr, plain_score(val_loss))
        stopping.note_saved(cfg, trainer)
        return saved

    @replaces(checkpoint_utils, "load_checkpoint")
    def load_checkpoint(load, cfg, trainer, **kwargs):
        extra_state, epoch_itr = load(cfg, trainer, **kwargs)
        stopping.note_loaded(trainer)
        restore_schedules(cfg, trainer, epoch_itr, extra_state)
        train_loop.before_first_update(trainer, epoch_itr)
        return extra_state, epoch_itr

    @replaces(checkpoint_utils, "prune_state_dict")
    def prune_state_dict(prune, state_dict, model_cfg):
        keep = layers_to_keep(model_cfg)
        return pruned(state_dict, keep) if keep else prune(state_dict, model_cfg)

    @replaces(checkpoint_utils, "torch_persistent_save")
    def torch_persistent_save(save, obj, filename, async_write=False):
        if async_write or not PathManager.supports_rename(filename):
            return save(obj, filename, async_write)
        write_durably(filename, lambda file: torch.save(obj, file))

    @replaces(file_utils, "load_archive_file")
    def load_archive_file(load, archive_file):
        if Path(archive_file).suffix == ".pt":
            raise UserError(
                f"{archive_file} is not a folder; name its folder, then the file as checkpoint_file"
            )
        found = load(archive_file)
        if found is None:
            raise UserError(f"no folder {archive_file} to load a model or its data from")
        return found

    @replaces(hub_utils, "from_pretrained")
    def from_pretrained(load, model_name_or_path, checkpoint_file="model.pt", *args, **kwargs):
        check_changes(model_name_or_path, checkpoint_file, kwargs)
        with explained_hub():
            return load(model_name_or_path, checkpoint_file, *args, **kwargs)

    PathManager.copy = staticmethod(copy_durably)

    @replaces(checkpoint_utils, "load_checkpoint_to_cpu")
    def load_checkpoint_to_cpu(load, path, arg_overrides=None, *args, **kwargs):
        state = read_safely(Path(path))
        overrides = dict(arg_overrides or {})
        overrides |= own_positions(path, state, overrides)
        with explained_checkpoint(path):
            return load(path, overrides, *args, **kwargs)

    @replaces(BaseFairseqModel, "upgrade_state_dict")
    def upgrade_state_dict(upgrade, self, state_dict):
        upgrade(self, state_dict)
        check_tied(self, state_dict)

    @replaces(RobertaModel, "upgrade_state_dict_named")
    def upgrade_roberta(upgrade, self, state_dict, name):
        self.saved_heads = heads_in(state_dict)
        with heads_of_spectral_norm(state_dict):
            upgrade(self, state_dict, name)

    @replaces(checkpoint_utils, "load_model_ensemble_and_task")
    def load_model_ensemble_and_task(
        load_models,
        filenames,
        arg_overrides=None,
        task=None,
        strict=True,
        suffix="",
        num_shards=1,
        state=None,
    ):
        if state is None:
            filenames = checkpoint_files(filenames)
        extras = [state.get("extra_state")] if state else []
        if num_shards == 1 and not suffix and state is None:
            extras = [read_for(task, filename).get("extra_state") for filename in filenames]
        with explained_weights(filenames):
            models, cfg, task = load_models(filenames, arg_overrides, task, strict, suffix, num_shards, state)
        for filename, model in zip(filenames, models, strict=True):
            check_finite(filename, model.state_dict())
            check_heads(filename, getattr(model, "saved_heads", {}), model)
        for filename, extra in zip(filenames, extras, strict=False):
            check_labels(filename, extra, task)
        return models, cfg, task


def read_for(task: Any, filename: str) -> dict[str, Any]:
    """A checkpoint for an evaluation with `task`, or with its own; UserError if the task does not fit it."""
    state = read_safely(Path(filename))
    if task is not None:
        check_model_of_task(architecture(filename, state), setting(task, "_name"))
    return state


def restore_schedules(cfg: Any, trainer: Any, epoch_itr: Any, extra_state: Mapping[str, Any] | None) -> None:
    """State of earlier validations, unless the run starts with the checkpoint's weights alone."""
    resumed = extra_state if extra_state and trainer.get_num_updates() else {}
    train_loop.resume_patience({} if cfg.reset_meters else resumed.get("patience", {}))
    if resumed:
        make_up_for_plateau(trainer, epoch_itr, resumed.get("val_loss"))


def layers_to_keep(model_cfg: Any) -> list[int]:
    """The layers that pruning keeps in a model of the plugin; empty without pruning."""
    if not hasattr(model_cfg, OURS):
        return []
    sides = (getattr(model_cfg, f"{side}_layers_to_keep", None) for side in ("encoder", "decoder"))
    return sorted({int(number) for keep in sides if keep for number in keep.split(",")})


def pruned(state_dict: dict[str, Any], keep: list[int]) -> dict[str, Any]:
    """The weights with the layers `keep` alone, renumbered.

    fairseq (every version) takes the last `layers.N` of a name, which may be a part of a layer, and overlooks
    a stack that is called `layers` itself.
    """
    numbers = {str(old): str(new) for new, old in enumerate(keep)}
    found = {}
    for name, x in state_dict.items():
        match = LAYER.search(name)
        if match is None:
            found[name] = x
        elif match[1] in numbers:
            found[name[: match.start(1)] + numbers[match[1]] + name[match.end(1) :]] = x
    return found


def plain_score(score: float | None) -> float | None:
    """fairseq stores scores of NumPy's (STS-B's correlation), which torch 2.6 and later refuse to load.

    The best one is in the checkpoint itself, another in the state of the learning rate's scheduler. Neither
    gets a score that is not finite: after NaN fairseq takes the next score for the best.
    """
    return float(score) if score is not None and math.isfinite(score) else None


def copy_durably(source: str, destination: str, overwrite: bool = False) -> bool:
    """fairseq copies checkpoints in place, so that a full disk leaves half of one."""
    with open(source, "rb") as file:
        write_durably(destination, lambda copy: shutil.copyfileobj(file, copy, 1 << 24))
    return True


def write_durably(filename: str, write: Callable[[BinaryIO], object]) -> None:
    """Write a whole file or none, and return when it is on the disk; OSError names it.

    fairseq (every version) trusts that the file is on the disk, and removes the one before. After a power cut
    neither may be there; a full disk keeps its half file.
    """
    try:
        with replacing(Path(filename), ".tmp") as partial, partial.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        folder = os.open(os.path.dirname(filename) or ".", os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except (OSError, RuntimeError) as error:  # torch makes a RuntimeError of a write that fails
        code = getattr(error, "errno", None) or errno.ENOSPC
        raise OSError(code, os.strerror(code), filename) from error


@contextlib.contextmanager
def explained_checkpoint(path: str) -> Iterator[None]:
    """fairseq shows torch's advice to load unsafely, and breaks on foreign files in tracebacks."""
    try:
        yield
    except UserError:
        raise
    except (AttributeError, KeyError, IndexError, TypeError):
        raise UserError(f"{path} {UNREADABLE}") from None
    except RuntimeError as error:
        if "PytorchStreamReader" not in str(error):
            raise
        raise UserError(f"{path} is damaged; copy it again, or name another one") from None


@contextlib.contextmanager
def explained_weights(filenames: Sequence[str]) -> Iterator[None]:
    """fairseq ends in a traceback where weights do not fit their model, or a part of them is missing."""
    try:
        yield
    except OSError as error:
        if "Model file not found: " not in str(error):
            raise
        missing = str(error).partition(": ")[2]
        raise UserError(
            f"no checkpoint {missing}, a part of {filenames[0]}; check --checkpoint-shard-count and "
            "--checkpoint-suffix, or leave them out"
        ) from None
    except ValidationError as error:
        raise UserError(
            f"the setting {error.full_key} of {' or '.join(filenames)} is wrong: {first_line(error)}; "
            "correct it in --model-overrides, or among the arguments of from_pretrained"
        ) from None
    except RuntimeError as error:
        if "Error(s) in loading state_dict" not in str(error):
            raise
        names = " or ".join(filenames)
        raise UserError(
            f"the weights in {names} do not fit the model of its settings: {difference(error)}; name a "
            "checkpoint as training has saved it, or the data folder of its training"
        ) from None


@contextlib.contextmanager
def heads_of_spectral_norm(state_dict: dict[str, Any]) -> Iterator[None]:
    """fairseq reads the size of a classification head off a weight that spectral norm has renamed."""
    heads = [key for key in state_dict if "classification_heads." in key and key.endswith("weight_orig")]
    names = {key.removesuffix("_orig"): state_dict[key] for key in heads}
    state_dict.update(names)
    try:
        yield
    finally:
        for name in names:
            state_dict.pop(name, None)


@contextlib.contextmanager
def explained_hub() -> Iterator[None]:
    """In Python a folder without a dictionary is named by an argument."""
    try:
        yield
    except UserError as error:
        if not str(error).startswith("no dictionary "):
            raise
        raise UserError(f"{error}, as data_name_or_path") from None
