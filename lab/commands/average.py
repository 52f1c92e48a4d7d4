"""The command `average`: one checkpoint whose weights are the mean of several."""

import re
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lab.errors import UserError
from lab.files import check_output, flush_to_disk, replacing, shown_path
from lab.options.models import OF_A_FOLDER
from lab.run.checkpoint import Checkpoint, read_checkpoint
from lab.run.folder import keep_vocabulary
from user_dir.checks.checkpoints import checkpoint_files, not_averaged
from user_dir.checks.same_settings import differences, is_free_at_start

NUMBERED = {
    "--num-update-checkpoints": re.compile(r"checkpoint_\d+_(\d+)\.pt"),
    "--num-epoch-checkpoints": re.compile(r"checkpoint(\d+)\.pt"),
}
"""The names of the checkpoints that each option of `OF_A_FOLDER` takes."""


def _number(options: Namespace) -> tuple[int | None, str]:
    """How many of a folder's checkpoints, and the option that says so."""
    given = {option: getattr(options, option.removeprefix("--").replace("-", "_")) for option in OF_A_FOLDER}
    return next(((number, option) for option, number in given.items() if number), (None, ""))


def inputs(options: Namespace) -> list[Path]:
    """The checkpoints to average; UserError if there are fewer than asked for, or fewer than two."""
    number, option = _number(options)
    if number:
        if len(options.inputs) > 1 or not Path(options.inputs[0]).is_dir():
            raise UserError(f"--inputs is {' '.join(options.inputs)}; {option} takes one folder")
        return last_checkpoints(Path(options.inputs[0]), number, option, options.checkpoint_upper_bound)
    found = [Path(name) for name in checkpoint_files(options.inputs)]
    if folder := next((path for path in found if path.is_dir()), None):
        raise UserError(f"--inputs names the folder {folder}; add {' or '.join(OF_A_FOLDER)} and a number")
    if len(found) < 2:
        raise UserError(f"--inputs names one checkpoint, {found[0]}; an average needs two or more")
    return found


def last_checkpoints(folder: Path, number: int, option: str, bound: int | None) -> list[Path]:
    """The last `number` checkpoints that `option` counts, up to `bound`; UserError if there are fewer."""
    pattern, names = NUMBERED[option], OF_A_FOLDER[option]
    matches = {int(match[1]): path for path in folder.iterdir() if (match := pattern.fullmatch(path.name))}
    found = [matches[at] for at in sorted(matches) if bound is None or at <= bound]
    if len(found) < number:
        up_to = f" up to {bound}" if bound else ""
        raise UserError(f"{folder} holds {len(found)} {names}{up_to}, not {number}; lower {option}")
    return found[-number:]


def check_alike(one: Checkpoint, other: Checkpoint) -> None:
    """UserError if the weights of two checkpoints have different meanings."""
    both = f"{one.path} and {other.path} cannot be averaged"
    for name, first, second in differences("architecture", one.settings, other.settings):
        if not is_free_at_start(name):
            raise UserError(f"{both}: {name} is {first!r} in one and {second!r} in the other")
    keys = [one.settings.get("dictionary_sha256"), other.settings.get("dictionary_sha256")]
    if None not in keys and keys[0] != keys[1]:
        raise UserError(f"{both}: they were trained with different dictionaries")
    shapes = [{name: tuple(x.shape) for name, x in each.weights.items()} for each in (one, other)]
    if shapes[0] != shapes[1]:
        name = min(name for name, _ in shapes[0].items() ^ shapes[1].items())
        raise UserError(f"{both}: {name} has another shape in one of them, or is missing")


def average(checkpoints: Sequence[Checkpoint]) -> dict[str, Any]:
    """The state of the averaged checkpoint; UserError if the checkpoints do not fit each other.

    Whole numbers and drawn buffers are taken from the newest checkpoint. Sums are in double precision.
    """
    newest = max(checkpoints, key=lambda one: one.updates)
    for other in checkpoints:
        check_alike(newest, other)
    made: dict[tuple[int, ...], Tensor] = {}  # a tied matrix stays one
    model, as_is = {}, not_averaged(newest.state["model"])
    for name, x in newest.state["model"].items():
        place = (x.data_ptr(), *x.shape)
        if place not in made or not x.numel():
            every = [one.state["model"][name] for one in checkpoints]
            made[place] = x.clone() if name in as_is else _mean(every)
        model[name] = made[place]
    left_out = ("model", "last_optimizer_state", "extra_state")
    kept = {key: value for key, value in newest.state.items() if key not in left_out}
    extra = newest.state.get("extra_state") or {}
    return {
        **kept,
        "model": model,
        "last_optimizer_state": None,
        "extra_state": {key: extra[key] for key in ("train_iterator",) if key in extra},
        "averaged": [f"{shown_path(one.path)} (update {one.updates:,})" for one in checkpoints],
    }


def _mean(tensors: Sequence[Tensor]) -> Tensor:
    return (sum(x.double() for x in tensors) / len(tensors)).to(tensors[0].dtype)


def is_average(path: Path) -> bool:
    """Whether a file is an average that this command has written."""
    try:
        return bool(read_checkpoint(path).averaged)
    except UserError:
        return False


def main(options: Namespace) -> None:
    """Write the average, and the dictionary and tokeniser beside it."""
    paths, out = inputs(options), options.output
    check_output(out, is_average, paths, option="--output")
    checkpoints = [read_checkpoint(path.absolute()) for path in paths]
    state = average(checkpoints)
    if out.absolute().parent != checkpoints[0].path.parent:
        keep_vocabulary(checkpoints[0].path.parent, out.absolute().parent, option="--output")
    with replacing(out, ".tmp") as partial:
        torch.save(state, partial)
        flush_to_disk(partial)
    print(f"{shown_path(out)} is the average of\n  " + "\n  ".join(state["averaged"]))
