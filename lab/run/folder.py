"""The folder of a run: the checkpoint it resumes from, and the data and settings that must be the same.

A run resumes from the newest whole checkpoint by update number. Dictionary, tokeniser and a note of the data
lie beside the checkpoints.
"""

import filecmp
import shutil
import zipfile
from collections.abc import Collection, Sequence
from pathlib import Path

from conventions.files import remove_if_left
from lab.data.tokenization import DICTIONARY, VOCABULARY_FILES
from lab.errors import UserError
from lab.files import FINGERPRINT, flush_to_disk, replacing, write_atomically
from lab.outputs import check_output, json_with
from lab.run.checkpoint import Checkpoint, read_checkpoint
from user_dir.checks import training_data

LAST, BEST = "checkpoint_last.pt", "checkpoint_best.pt"
DATA = training_data.RECORD
DATA_RECORD = json_with("data", FINGERPRINT)
LEFT_BY_A_RUN = ("checkpoint*.pt*", "checkpoint*.json", "train*.log", "tensorboard", DATA)
HALF = ".????????.checkpoint*.pt.tmp"
LEFT_BY_A_START = (
    *("train.log", DATA, *VOCABULARY_FILES),
    *(HALF, "tensorboard/**/events.out.tfevents.*"),
)
"""What a run writes before its first checkpoint, in a folder of its own."""


def check_vocabulary(source: Path, save_dir: Path) -> None:
    """UserError if `save_dir` holds a run with another dictionary or tokeniser than `source`."""
    for name in VOCABULARY_FILES:
        kept, given = save_dir / name, source / name
        if kept.is_file() and given.is_file() and not filecmp.cmp(kept, given, shallow=False):
            what = "dictionary" if name == DICTIONARY else "tokeniser"
            raise UserError(
                f"{save_dir} holds a run with another {what} than {source}; choose another --save-dir"
            )


def keep_vocabulary(source: Path, save_dir: Path, failed_start: bool = False) -> None:
    """Copies of the dictionary and the tokeniser of `source`; UserError if those of another run are there.

    Those of a `failed_start` are replaced.
    """
    if not failed_start:
        check_vocabulary(source, save_dir)
    for name in VOCABULARY_FILES:
        kept, given = save_dir / name, source / name
        if given.is_file() and not (kept.is_file() and filecmp.cmp(kept, given, shallow=False)):
            write_atomically(kept, given.read_bytes())
        elif failed_start and not given.is_file():
            kept.unlink(missing_ok=True)


def is_failed_start(save_dir: Path) -> bool:
    """Whether all that `save_dir` holds of a run was written before its first checkpoint."""
    path = save_dir / DATA
    return path.is_file() and DATA_RECORD(path) and not any(save_dir.glob("checkpoint*.pt"))


def keep_data_record(
    data: Path,
    save_dir: Path,
    resumes: bool,
    allowed: Collection[str] = (),
    advice: str = training_data.ADVICE,
) -> None:
    """Note in `save_dir` what it is trained on; UserError if it `resumes` with other training data."""
    check_output(save_dir / DATA, DATA_RECORD, option="--save-dir")
    training_data.keep_data_record(data, save_dir, resumes, "data" in allowed, advice)


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


def find_resume_point(folder: Path) -> Checkpoint | None:
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
