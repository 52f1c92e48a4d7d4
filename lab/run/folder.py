"""The folder of a run: the one place that knows whether its training has begun or ended, and as what.

The lock keeps other runs out. A run of a study is marked with the fingerprint of its settings; those of any
other are in its checkpoints. Dictionary, tokeniser and a note of the data lie beside these. A run resumes
from the newest whole checkpoint by update number.
"""

import filecmp
import re
import shutil
import zipfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conventions import RUN_DATA
from conventions.files import remove_if_left
from lab.data.tokenization import DICTIONARY, VOCABULARY_FILES
from lab.errors import UserError
from lab.files import (
    FINGERPRINT,
    RUN_MARK,
    begin,
    flush_to_disk,
    is_run,
    replacing,
    write_atomically,
    write_json,
)
from lab.outputs import check_output, json_with, run_lock

if TYPE_CHECKING:
    from lab.run.checkpoint import Checkpoint

LAST, BEST = "checkpoint_last.pt", "checkpoint_best.pt"
LOG = "train.log"
GLUE_TASK = "glue_task.json"
"""Beside fine-tuned weights: the task they are for."""
LRA_RUN = "run.json"
"""Beside weights of Long Range Arena: preset, attention, steps, seed, data and machine of the run."""
DATA_RECORD = json_with("data", FINGERPRINT)
LEFT_BY_A_RUN = ("checkpoint*.pt*", "checkpoint*.json", "train*.log", "tensorboard", RUN_DATA)
HALF = ".????????.checkpoint*.pt.tmp"
LEFT_BY_A_START = (
    *(LOG, RUN_DATA, GLUE_TASK, LRA_RUN, *VOCABULARY_FILES),
    *(HALF, "tensorboard/**/events.out.tfevents.*"),
)
"""What a run writes before its first checkpoint, in a folder of its own."""
SAVED = re.compile(r"checkpoint(_last|_best|\d+|_\d+_\d+|\.best_.+_-?\d+\.\d+)\.pt")
"""Names that fairseq gives to checkpoints."""


@dataclass(frozen=True)
class RunFolder:
    """A folder and the run that belongs into it.

    `option` is the one that chooses another folder. A run of a study has the name of its `command` and the
    fingerprint `settings`, which mark the folder.
    """

    path: Path
    option: str = "--save-dir"
    command: str = ""
    settings: str = ""

    @property
    def log(self) -> Path:
        """What the training prints."""
        return self.path / LOG

    @property
    def is_begun(self) -> bool:
        """Whether there is a checkpoint of any kind, from which the run resumes."""
        return any(self.path.glob("checkpoint*.pt"))

    @property
    def is_failed_start(self) -> bool:
        """Whether all that it holds of a run was written before its first checkpoint."""
        path = self.path / RUN_DATA
        return path.is_file() and DATA_RECORD(path) and not self.is_begun

    def checkpoints(self) -> list[Path]:
        """Those that fairseq has saved, not copies under names of the user's."""
        return [path for path in self.path.glob("checkpoint*.pt") if SAVED.fullmatch(path.name)]

    def checkpoint(self, name: str) -> Path:
        """The checkpoint `best` or `last`; the last one if no best was saved."""
        wanted = self.path / f"checkpoint_{name}.pt"
        return wanted if wanted.is_file() else self.path / LAST

    @contextmanager
    def lock(self, patience: float = 0) -> Iterator[int]:
        """Keep other runs out, see `run_lock`; UserError for a folder that is not one of `command`'s runs."""
        if self.command and not is_run(self.path, self.command):
            begin(self.path, self.command, self.settings)
        with run_lock(self.path, patience, self.option) as descriptor:
            yield descriptor

    def begin(self) -> None:
        """Mark it with the settings of its run; UserError if it holds checkpoints of another run.

        What a start without a checkpoint has left goes; files that no run writes stay.
        """
        if not self.is_begun:
            for path in [path for pattern in LEFT_BY_A_START for path in self.path.glob(pattern)]:
                path.unlink()
            write_json(self.path / RUN_MARK, {"command": self.command, FINGERPRINT: self.settings})
        begin(self.path, self.command, self.settings)

    def keep_only(self, kept: Path | None) -> None:
        """Remove the checkpoints but the one `kept`."""
        for path in self.checkpoints():
            if path != kept:
                path.unlink()


def check_vocabulary(source: Path, save_dir: Path, option: str = "--save-dir") -> None:
    """UserError if `save_dir` holds a run with another dictionary or tokeniser than `source`."""
    for name in VOCABULARY_FILES:
        kept, given = save_dir / name, source / name
        if kept.is_file() and given.is_file() and not filecmp.cmp(kept, given, shallow=False):
            what = "dictionary" if name == DICTIONARY else "tokeniser"
            raise UserError(
                f"{save_dir} holds a run with another {what} than {source}; choose another {option}"
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


def take_up(
    folder: RunFolder, data: Path | None, read: Any, allowed: Collection[str] = (), fresh: bool = False
) -> "Checkpoint | None":
    """The checkpoint that the run of a folder resumes from, None for a start at update 1.

    `data` are prepared (None for a task that draws its own), `read` is fairseq's configuration. `fresh` moves
    aside what another run has left. UserError if a run with other settings, another dictionary or other data
    has begun there, but for the settings that are `allowed` to differ.
    """
    from user_dir.checks.same_settings import check_same_run
    from user_dir.checks.training_data import ADVICE, keep_data_record

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


def newest_whole(folder: Path) -> "Checkpoint | None":
    """The whole checkpoint of `folder` with the most updates, None if there is none."""
    return _survey(folder)[0]


def _survey(folder: Path) -> "tuple[Checkpoint | None, list[str]]":
    """The newest whole checkpoint of the run itself, and the names of the damaged ones."""
    found = {path: read_whole(path) for path in sorted(folder.glob("checkpoint*.pt"))}
    whole = (one for one in found.values() if one and not one.averaged)
    newest = max(whole, key=lambda one: (one.updates, one.path.name == LAST), default=None)
    return newest, [path.name for path, one in found.items() if one is None]


def read_whole(path: Path) -> "Checkpoint | None":
    """A checkpoint; None if it is damaged or none, whatever the reason.

    Raises PermissionError for one that may not be read: it may be whole.
    """
    from lab.run.checkpoint import read_checkpoint

    try:
        checkpoint = read_checkpoint(path)
        with zipfile.ZipFile(path) as archive:
            return None if archive.testzip() else checkpoint
    except PermissionError:
        raise
    except (UserError, zipfile.BadZipFile, OSError):
        return None


def find_resume_point(folder: Path, anew: str = "add --fresh to move them aside") -> "Checkpoint | None":
    """Where the run in `folder` resumes; None if the folder holds no checkpoint.

    UserError if all are damaged: a run starts at update 1 in their place only if asked to. `anew` says how.
    """
    if (folder / LAST).is_dir():
        raise UserError(f"{folder / LAST} is a folder where a checkpoint belongs; move it away")
    newest, damaged = _survey(folder)
    if newest and damaged:
        print(f"passing over {', '.join(damaged)}, which cannot be read", flush=True)
    if newest is None and damaged:
        raise UserError(
            f"no checkpoint in {folder} is whole ({', '.join(damaged)}); copy them again, or {anew} "
            "and start at update 1"
        )
    return newest


def complete_save(saved: "Checkpoint") -> None:
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
