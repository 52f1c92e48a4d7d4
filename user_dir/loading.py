"""Checkpoints and dictionaries that cannot be right end in one sentence, before fairseq trusts them."""

import os
import pickle
import re
import zipfile
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from .errors import UserError
from .models.vocabulary import check_dictionary
from .replacing import replaces

UNREADABLE = "is no checkpoint of fairseq's: its configuration cannot be read; name another one"
# The lines of torch's message in which a model and the weights differ.
MISFIT = re.compile(r"^\s*((?:Missing key|Unexpected key|size mismatch for).*)$", re.MULTILINE)


def read_safely(path: Path) -> Mapping[str, Any]:
    """What a checkpoint holds, its tensors mapped from the file.

    Only tensors and plain values are read; a pickle that would run code is refused.

    Raises:
        UserError: if it is missing, a folder, damaged, no checkpoint, or holds code.
    """
    if path.is_dir():
        raise UserError(f"{path} is a folder where a checkpoint belongs; name a file, or move it away")
    if not path.is_file():
        raise UserError(f"no checkpoint {path}")
    mapped = zipfile.is_zipfile(path)  # else truncated, foreign, or older than torch 1.6
    try:
        state = torch.load(path, map_location="cpu", mmap=mapped, weights_only=True)
    except pickle.UnpicklingError:
        with path.open("rb") as file:
            if not mapped and file.read(1) != pickle.PROTO:
                raise UserError(f"{path} is damaged or no checkpoint of fairseq's") from None
        raise UserError(
            f"{path} is refused: it holds Python objects that a checkpoint has no need of; "
            "nothing in it was run"
        ) from None
    except Exception:  # bytes that are no checkpoint make the loader fail in many ways
        raise UserError(f"{path} is damaged or not a fairseq checkpoint") from None
    if not isinstance(state, Mapping) or not isinstance(state.get("model"), Mapping):
        raise UserError(f"{path} is not a fairseq checkpoint: it holds no model")
    if not (state.get("cfg") or state.get("args")):
        raise UserError(f"{path} is not a fairseq checkpoint: it holds no configuration")
    return state


def look_before_loading() -> None:
    """fairseq shows torch's advice to load unsafely, and breaks on foreign files in tracebacks."""
    from fairseq import checkpoint_utils

    @replaces(checkpoint_utils, "load_checkpoint_to_cpu")
    def load_checkpoint_to_cpu(load, path, *args, **kwargs):
        read_safely(Path(path))
        try:
            return load(path, *args, **kwargs)
        except UserError:
            raise
        except (AttributeError, KeyError, IndexError, TypeError):
            raise UserError(f"{path} {UNREADABLE}") from None
        except RuntimeError as error:
            if "PytorchStreamReader" not in str(error):
                raise
            raise UserError(f"{path} is damaged; copy it again, or name another one") from None

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
        if num_shards == 1 and not suffix and state is None:
            for filename in filenames:
                read_safely(Path(filename))
        return load_models(filenames, arg_overrides, task, strict, suffix, num_shards, state)


def check_where_training_starts() -> None:
    """fairseq starts at update 1 beside a folder of the checkpoint's name, and takes any dictionary.

    That is so for the run's own checkpoint, `--restore-file` and `--finetune-from-model`, which all come
    here. A model that does not fit is said in fourteen lines, none of which names the difference.
    """
    from fairseq.trainer import Trainer

    @replaces(Trainer, "load_checkpoint")
    def load_checkpoint(load, self, filename, *args, **kwargs):
        if os.path.exists(filename):
            settings = _model_settings(filename, read_safely(Path(filename)))
            if getattr(settings, "dictionary_sha256", None) is not None:
                check_dictionary(settings, self.task.source_dictionary)
        try:
            return load(self, filename, *args, **kwargs)
        except Exception as error:
            if "Cannot load model parameters" not in str(error):
                raise
            raise UserError(
                f"the checkpoint {filename} does not fit the model: {_difference(error.__context__)}; give "
                "the settings it was trained with, or another --save-dir"
            ) from error


def explain_dictionaries() -> None:
    """fairseq says in a traceback that a dictionary is missing or no text."""
    from fairseq.data import Dictionary

    @replaces(Dictionary, "add_from_file")
    def add_from_file(add, self, f):
        try:
            add(self, f)
        except UserError:
            raise
        except FileNotFoundError:
            raise UserError(f"no dictionary {f}; name a folder that fairseq-preprocess has filled") from None
        except Exception as error:
            if not isinstance(f, str):  # fairseq calls this again with the open file
                raise
            reason = str(error).partition("\n")[0]
            raise UserError(f"{f} is no dictionary of fairseq's ({reason}); prepare the data again") from None


def refuse_empty_splits() -> None:
    """fairseq cannot map a file without content, and says so in a traceback that names no file."""
    from fairseq.data import data_utils

    @replaces(data_utils, "load_indexed_dataset")
    def load_indexed_dataset(load, path, *args, **kwargs):
        content = Path(f"{path}.bin")
        if content.is_file() and content.stat().st_size == 0:
            raise UserError(f"{content} is empty: the split holds no row; prepare the data again")
        return load(path, *args, **kwargs)


def _model_settings(path: str, state: Mapping[str, Any]) -> Namespace:
    """The model's configuration in a checkpoint, new style or old; UserError if it is neither."""
    try:
        model = state["cfg"].get("model") if state.get("cfg") else state["args"]
        return model if isinstance(model, Namespace) else Namespace(**(model or {}))
    except (AttributeError, TypeError):
        raise UserError(f"{path} {UNREADABLE}") from None


def _difference(error: BaseException | None) -> str:
    """The first difference that torch names, or what else went wrong."""
    found = MISFIT.search(str(error))
    return " ".join((found[1] if found else str(error)).split()).rstrip(".;")


GUARDS = (look_before_loading, check_where_training_starts, explain_dictionaries, refuse_empty_splits)


def apply() -> None:
    """All of them; applying them twice changes nothing."""
    for guard in GUARDS:
        guard()
