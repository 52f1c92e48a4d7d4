"""The checkpoints that a command names, and their content, read without running anything in them."""

import os
import pickle
import re
import zipfile
from argparse import Namespace
from collections.abc import Mapping, Sequence
from glob import glob
from pathlib import Path
from typing import Any

import torch

from ..errors import UserError

UNREADABLE = "is not a fairseq checkpoint: its configuration cannot be read; name another one"
# The lines of torch's message in which a model and the weights differ.
MISFIT = re.compile(r"^\s*((?:Missing key|Unexpected key|size mismatch for).*)$", re.MULTILINE)

HEAD = re.compile(r"(?:^|\.)classification_heads\.([^.]+)\.out_proj\.weight(?:_orig)?$")

# Buffers of numbers that an attention has drawn.
DRAWN = ("eval_proj", "rotations")
# Options that keep the output matrix apart from the embeddings, by a part of its name.
UNTIES = {
    "lm_head": "--untie-weights-roberta",
    "output_projection": "--no-share-decoder-input-output-embed",
}
# Settings that give a model's longest sequence; the first one present counts.
POSITIONS = ("max_target_positions", "max_positions", "tokens_per_sample")


def checkpoint_files(filenames: Sequence[str]) -> list[str]:
    """The checkpoints of an ensemble, as `--path` names them: with colons between, or by a wildcard.

    The name of a file may hold colons and wildcards as well.

    Args:
        filenames: `--path`, or its parts between the colons.
    """
    parts, found = os.pathsep.join(map(str, filenames)).split(os.pathsep), []
    while parts:
        ends = range(len(parts), 0, -1)
        end = next((end for end in ends if os.path.exists(os.pathsep.join(parts[:end]))), 1)
        name = os.pathsep.join(parts[:end])
        found += [name] if os.path.exists(name) else sorted(glob(name)) or [name]
        parts = parts[end:]
    return found


def check_one_model(option: str, path: str | None) -> None:
    """UserError if an option that takes one checkpoint names several."""
    if path and len(found := checkpoint_files([path])) > 1:
        raise UserError(
            f"{option} names {len(found)} checkpoints, but takes one; give one of them, average them with "
            "scripts/lab.sh average, or evaluate all with --path of fairseq-eval-lm"
        )


def read_safely(path: Path) -> Mapping[str, Any]:
    """The content of a checkpoint, its tensors mapped from the file.

    Only tensors and plain values are read; a pickle that would run code is refused.

    Raises:
        UserError: if it is missing, a folder, damaged, not a checkpoint, or holds code.
        PermissionError: if it may not be read.
    """
    if path.is_dir():
        raise UserError(f"{path} is a folder where a checkpoint belongs; name a file, or move it away")
    if not path.is_file():
        check_one_model("CHECKPOINT", str(path))
        raise UserError(f"no checkpoint {path}")
    with path.open("rb") as file:
        first = file.read(1)
    mapped = zipfile.is_zipfile(path)  # else truncated, foreign, or older than torch 1.6
    try:
        state = torch.load(path, map_location="cpu", mmap=mapped, weights_only=True)
    except pickle.UnpicklingError:
        if not mapped and first != pickle.PROTO:
            raise UserError(f"{path} is damaged or not a fairseq checkpoint") from None
        raise UserError(
            f"{path} is refused: it holds Python objects that a checkpoint does not need; "
            "nothing in it was run"
        ) from None
    except Exception:  # bytes that are not a checkpoint make the loader fail in many ways
        raise UserError(f"{path} is damaged or not a fairseq checkpoint") from None
    if not isinstance(state, Mapping) or not isinstance(state.get("model"), Mapping):
        raise UserError(f"{path} is not a fairseq checkpoint: it holds no model")
    if not (state.get("cfg") or state.get("args")):
        raise UserError(f"{path} is not a fairseq checkpoint: it holds no configuration")
    return state


def check_finite(path: str, state: Mapping[str, Any]) -> None:
    """UserError where weights are NaN or infinite: the figures would be NaN, too."""
    for name, x in state.items():
        if isinstance(x, torch.Tensor) and x.is_floating_point() and not torch.isfinite(x).all():
            raise UserError(
                f"{path} holds weights that are NaN or infinite (the first: {name}): its training has "
                "diverged; name an earlier checkpoint"
            )


def heads_in(weights: Mapping[str, torch.Tensor]) -> dict[str, tuple[int, ...]]:
    """The classes and the width of each classification head, by its name."""
    return {match[1]: tuple(x.shape) for name, x in weights.items() if (match := HEAD.search(name))}


def check_heads(path: str, saved: Mapping[str, tuple[int, ...]], model: torch.nn.Module) -> None:
    """UserError where a model has a classification head that is not among those `saved` in its checkpoint.

    fairseq evaluates such a head with the weights that it was drawn with.
    """
    for name, shape in heads_in(model.state_dict()).items():
        if saved.get(name) != shape:
            there = ", ".join(f"{head} ({classes} classes)" for head, (classes, _) in saved.items())
            raise UserError(
                f"{path} holds no classification head {name} of {shape[0]} classes, but {there or 'none'}; "
                "give the --classification-head-name and the --num-classes of its training"
            )


def configuration(path: str, state: Mapping[str, Any]) -> dict[str, Namespace]:
    """The settings of model and task in a checkpoint, new style or old; UserError if it has neither."""
    try:
        groups = state["cfg"] if state.get("cfg") else dict.fromkeys(("model", "task"), state["args"])
        found = {name: groups.get(name) or {} for name in ("model", "task")}
        return {name: x if isinstance(x, Namespace) else Namespace(**x) for name, x in found.items()}
    except (AttributeError, TypeError):
        raise UserError(f"{path} {UNREADABLE}") from None


def architecture(path: str, state: Mapping[str, Any]) -> str | None:
    """The name of the architecture, or the model, in a checkpoint."""
    model = configuration(path, state)["model"]
    return getattr(model, "_name", None) or getattr(model, "arch", None)


def own_positions(path: str, state: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, int]:
    """Settings that keep the positions of the model in a checkpoint, whatever a command's sample is.

    fairseq-validate sets `--tokens-per-sample` for the model, too, whose positions follow from it unless they
    were given.

    Args:
        path: of the checkpoint, for the message.
        state: its content.
        overrides: settings that replace the checkpoint's own.

    Raises:
        UserError: where the sample has more tokens than the model has positions.
    """
    wanted = overrides.get("tokens_per_sample")
    if wanted is None or {"max_target_positions", "max_positions"} & overrides.keys():
        return {}
    settings = {name: vars(group) for name, group in configuration(path, state).items()}
    positions = positions_in(settings) or wanted
    if wanted > positions:
        raise UserError(
            f"--tokens-per-sample is {wanted}, more than the {positions} positions of the model in {path}; "
            f"give {positions} or less"
        )
    return {name: positions for name in POSITIONS[:2] if settings["model"].get(name, positions) is None}


def positions_in(settings: Mapping[str, Mapping[str, Any]]) -> int | None:
    """The longest sequence of a model, from the settings of model and task; None if they leave it open."""
    sizes = (settings[group].get(name) for name in POSITIONS for group in ("model", "task"))
    return next((size for size in sizes if isinstance(size, int)), None)


def has_attention(model: Any, name: str) -> bool:
    """Whether the plan in a model's settings, or else the name of its architecture, has this mechanism."""
    settings = ("decoder_attention", "encoder_attention", "_name")
    return name in str(next(filter(None, (getattr(model, setting, None) for setting in settings)), ""))


def not_averaged(weights: Mapping[str, Any]) -> set[str]:
    """The names of whole numbers and of buffers that an attention has drawn, whose mean is not a draw."""
    return {
        name
        for name, x in weights.items()
        if isinstance(x, torch.Tensor) and (not x.is_floating_point() or name.rpartition(".")[2] in DRAWN)
    }


def check_tied(model: torch.nn.Module, weights: Mapping[str, Any]) -> None:
    """UserError where the model has one matrix for two names, and the weights differ.

    Loading would keep one of the two without a word. A checkpoint trained with untied embeddings is such a
    one for a model that ties them.
    """
    names: dict[torch.nn.Parameter, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        first = names.setdefault(parameter, name)
        if first == name or not {first, name} <= weights.keys():
            continue
        one, other = weights[first], weights[name]
        if one.shape == other.shape and not torch.allclose(one, other, rtol=0, atol=0, equal_nan=True):
            option = next((option for part, option in UNTIES.items() if part in name), None)
            hint = f" ({option} keeps them apart)" if option else ""
            raise UserError(
                f"{first} and {name} are one matrix in the model, and differ in the checkpoint{hint}"
            )


def difference(error: BaseException | None) -> str:
    """The first difference that torch names, or the error's own text."""
    found = MISFIT.search(str(error))
    first, *more = (found[1] if found else str(error)).split('", "')
    text = f'{first}" and {len(more)} more' if more else first
    return " ".join(text.split()).rstrip(".;")
