"""Which checkpoint of its folder a training run resumes from: the newest whole one by update number."""

import os
import shutil
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.errors import UserError
from pipeline.training.checkpoint import load_safely, updates

LAST, BEST = "checkpoint_last.pt", "checkpoint_best.pt"


@dataclass(frozen=True)
class SavedState:
    """A whole checkpoint: its update number, its configuration, and whether it was the best so far."""

    path: Path
    updates: int
    configuration: Any
    best: bool


def newest_whole(folder: Path) -> SavedState | None:
    """The whole checkpoint of `folder` with the most updates, None if there is none."""
    return _survey(folder)[0]


def _survey(folder: Path) -> tuple[SavedState | None, list[str]]:
    """The newest whole checkpoint, and the names of the damaged ones."""
    found = {path: read_whole(path) for path in sorted(folder.glob("checkpoint*.pt"))}
    whole = (state for state in found.values() if state)
    newest = max(whole, key=lambda state: (state.updates, state.path.name == LAST), default=None)
    return newest, [path.name for path, state in found.items() if state is None]


def read_whole(path: Path) -> SavedState | None:
    """What the run needs to know of a checkpoint; None if it is damaged or none, whatever the reason."""
    try:
        state, configuration = load_safely(path)
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
    except (UserError, zipfile.BadZipFile, OSError):
        return None
    if damaged:
        return None
    extra = state.get("extra_state") or {}
    score = extra.get("val_loss")
    return SavedState(path, updates(state), configuration, score is not None and score == extra.get("best"))


def find_resume_point(folder: Path) -> SavedState | None:
    """Where the run in `folder` resumes; None if the folder holds no checkpoint.

    UserError if all are damaged: a run starts at update 1 in their place only if asked to.
    """
    if (folder / LAST).is_dir():
        raise UserError(f"{folder / LAST} is a folder where a checkpoint belongs; move it away")
    newest, damaged = _survey(folder)
    if newest and damaged:
        print(f"passing over {', '.join(damaged)}, which cannot be read", flush=True)
    if newest is None and damaged:
        raise UserError(
            f"no checkpoint in {folder} is whole ({', '.join(damaged)}); copy them again, or add --fresh "
            "to move them aside and start at update 1"
        )
    return newest


def complete_save(state: SavedState) -> None:
    """Make `state` the folder's checkpoint_last.pt, and its best one if it was, as its save would have."""
    folder = state.path.parent
    for half in folder.glob("checkpoint*.pt.tmp"):
        half.unlink()
    print(f"resuming from {state.path.name} (update {state.updates:,})", flush=True)
    if state.path.name != LAST:
        copy_durably(state.path, folder / LAST)
        best = read_whole(folder / BEST) if state.best else None
        if state.best and (best is None or best.updates < state.updates):
            copy_durably(state.path, folder / BEST)


def copy_durably(source: Path, target: Path) -> None:
    """Copy a file whole or not at all; it is on the disk when this returns."""
    partial = target.with_name(f"{target.name}.tmp")
    try:
        shutil.copyfile(source, partial)
        with partial.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(partial, target)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def move_aside(folder: Path, left: Sequence[Path] | None = None) -> None:
    """Move what `left` names, by default what a run has left in `folder`, to a new folder in it, and say so.

    Nothing is removed.
    """
    if left is None:
        left = [path for pattern in LEFT_BY_A_RUN for path in sorted(folder.glob(pattern))]
    if not left:
        return
    number = 1
    while (aside := folder / f"earlier-{number}").exists():
        number += 1
    aside.mkdir()
    for path in left:
        path.rename(aside / path.name)
    print(f"moved to {aside}: {', '.join(path.name for path in left)}", flush=True)


LEFT_BY_A_RUN = ("checkpoint*.pt*", "checkpoint*.json", "train*.log", "tensorboard", "data.json")
