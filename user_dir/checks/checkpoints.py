"""What a checkpoint holds, read without running anything in it."""

import pickle
import re
import zipfile
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ..errors import UserError

UNREADABLE = "is no checkpoint of fairseq's: its configuration cannot be read; name another one"
# The lines of torch's message in which a model and the weights differ.
MISFIT = re.compile(r"^\s*((?:Missing key|Unexpected key|size mismatch for).*)$", re.MULTILINE)


def read_safely(path: Path) -> Mapping[str, Any]:
    """What a checkpoint holds, its tensors mapped from the file.

    Only tensors and plain values are read; a pickle that would run code is refused.

    Raises:
        UserError: if it is missing, a folder, damaged, no checkpoint, or holds code.
        PermissionError: if it may not be read.
    """
    if path.is_dir():
        raise UserError(f"{path} is a folder where a checkpoint belongs; name a file, or move it away")
    if not path.is_file():
        raise UserError(f"no checkpoint {path}")
    with path.open("rb") as file:
        first = file.read(1)
    mapped = zipfile.is_zipfile(path)  # else truncated, foreign, or older than torch 1.6
    try:
        state = torch.load(path, map_location="cpu", mmap=mapped, weights_only=True)
    except pickle.UnpicklingError:
        if not mapped and first != pickle.PROTO:
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


def configuration(path: str, state: Mapping[str, Any]) -> dict[str, Namespace]:
    """The settings of model and task in a checkpoint, new style or old; UserError if it has neither."""
    try:
        groups = state["cfg"] if state.get("cfg") else dict.fromkeys(("model", "task"), state["args"])
        found = {name: groups.get(name) or {} for name in ("model", "task")}
        return {name: x if isinstance(x, Namespace) else Namespace(**x) for name, x in found.items()}
    except (AttributeError, TypeError):
        raise UserError(f"{path} {UNREADABLE}") from None


def difference(error: BaseException | None) -> str:
    """The first difference that torch names, or what else went wrong."""
    found = MISFIT.search(str(error))
    return " ".join((found[1] if found else str(error)).split()).rstrip(".;")
