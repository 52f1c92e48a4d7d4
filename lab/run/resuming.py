"""The checkpoint that a run resumes from: the newest whole one, if its settings and data are the same."""

import shutil
import zipfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

from conventions import RUN_DATA
from conventions.files import remove_if_left
from lab.errors import UserError
from lab.files import check_output, flush_to_disk, replacing
from lab.run.checkpoint import Checkpoint, read_checkpoint
from lab.run.folder import (
    BEST,
    DATA_RECORD,
    HALF,
    LAST,
    RunFolder,
    check_vocabulary,
    keep_vocabulary,
    move_aside,
)
from user_dir.checks.same_settings import check_same_run
from user_dir.checks.training_data import ADVICE, keep_data_record


def take_up(
    folder: RunFolder, data: Path | None, read: Any, allowed: Collection[str] = (), fresh: bool = False
) -> Checkpoint | None:
    """The checkpoint that the run of a folder resumes from, None for a start at update 1.

    `data` are prepared (None for a task that draws its own), `read` is fairseq's configuration. `fresh` moves
    aside what another run has left. UserError if a run with other settings, another dictionary or other data
    has begun there, but for the settings that are `allowed` to differ.
    """
    path, failed_start = folder.path, folder.is_failed_start
    if data and not failed_start:
        check_vocabulary(data, path, folder.option)
    if fresh:
        move_aside(path)
    start = find_resume_point(path, *(["move them away"] if folder.command else []))
    if start:
        check_same_run(str(path), start.groups, read)
    if data:
        check_output(path / RUN_DATA, DATA_RECORD, option=folder.option)
        advice = f"move it away, or choose another {folder.option}" if folder.command else ADVICE
        keep_data_record(data, path, start is not None, "data" in allowed, advice)
        keep_vocabulary(data, path, failed_start)
    return start


def newest_whole(folder: Path) -> Checkpoint | None:
    """The whole checkpoint of `folder` with the most updates, None if there is none."""
    return _survey(folder)[0]


def _survey(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest whole checkpoint of the run itself, and the names of the damaged ones."""
    found = {path: read_whole(path) for path in sorted(folder.glob("checkpoint*.pt"))}
    whole = (one for one in found.values() if one and not one.averaged)
    newest = max(whole, key=lambda one: (one.updates, one.path.name == LAST), default=None)
    return newest, [path.name for path, one in found.items() if one is None]


def read_whole(path: Path) -> Checkpoint | None:
    """A checkpoint; None if it is damaged or none, whatever the reason.

    Raises PermissionError for one that may not be read: it may be whole.
    """
    try:
        checkpoint = read_checkpoint(path)
        with zipfile.ZipFile(path) as archive:
            return None if archive.testzip() else checkpoint
    except PermissionError:
        raise
    except (UserError, zipfile.BadZipFile, OSError):
        return None


def find_resume_point(folder: Path, how: str = "add --fresh to move them aside") -> Checkpoint | None:
    """Where the run in `folder` resumes; None if the folder holds no checkpoint.

    UserError if all are damaged: a run starts at update 1 in their place only if asked to, as `how` says.
    """
    if (folder / LAST).is_dir():
        raise UserError(f"{folder / LAST} is a folder where a checkpoint belongs; move it away")
    newest, damaged = _survey(folder)
    if newest and damaged:
        print(f"passing over {', '.join(damaged)}, which cannot be read", flush=True)
    if newest is None and damaged:
        raise UserError(
            f"no checkpoint in {folder} is whole ({', '.join(damaged)}); copy them again, or {how} "
            "and start at update 1"
        )
    return newest


def complete_save(saved: Checkpoint) -> None:
    """Make `saved` the folder's checkpoint_last.pt, and its best one if it was, as its save would have."""
    folder = saved.path.parent
    for half in folder.glob(HALF):
        remove_if_left(half)
    print(f"resuming from {saved.path.name} (update {saved.updates:,})", flush=True)
    if saved.path.name != LAST:
        copy_durably(saved.path, folder / LAST)
        best = read_whole(folder / BEST) if saved.is_best else None
        if saved.is_best and (best is None or best.updates < saved.updates):
            copy_durably(saved.path, folder / BEST)


def copy_durably(source: Path, target: Path) -> None:
    """Copy a file whole or not at all; it is on the disk when this returns."""
    with replacing(target, ".tmp") as partial:
        shutil.copyfile(source, partial)
        flush_to_disk(partial)


def is_half_written(path: Path) -> bool:
    """Whether it is the beginning of a checkpoint and no more (torch writes zip archives)."""
    with path.open("rb") as file:
        start = file.read(4)
    return start in (b"", b"PK\x03\x04") and not zipfile.is_zipfile(path)


def whole_checkpoint(path: Path) -> Path:
    """`path`, or the newest complete checkpoint beside it if an interrupted save has left half of it.

    Says which one it takes. UserError if there is neither.
    """
    if not path.exists():
        raise UserError(f"no checkpoint {path}; name one that is there")
    if not path.is_file() or not is_half_written(path):
        return path
    newest = newest_whole(path.parent)
    if newest is None:
        raise UserError(f"{path} is incomplete and there is no other checkpoint beside it; train again")
    print(f"{path.name} is incomplete; taking {newest.path.name}", flush=True)
    return newest.path
