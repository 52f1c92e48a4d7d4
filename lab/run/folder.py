"""The folder of a run: decides whether its training has begun or ended, and with which settings.

The lock keeps other runs out. The fingerprint of its settings marks a run of a study; other runs have their
settings in their checkpoints. Dictionary, tokeniser and a note of the data lie beside the checkpoints.
"""

import filecmp
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from conventions import RUN_DATA
from lab.data.prepared import DICTIONARY, VOCABULARY_FILES
from lab.errors import UserError
from lab.files import (
    FINGERPRINT,
    RUN_MARK,
    begin,
    is_run,
    json_with,
    read_json,
    run_lock,
    write_atomically,
    write_json,
)
from lab.provenance import commit

LAST, BEST = "checkpoint_last.pt", "checkpoint_best.pt"
LOG = "train.log"
COMMIT = "commit"
"""Key in the mark of a run."""
GLUE_TASK = "glue_task.json"
"""Beside fine-tuned weights: the task they are for."""
LRA_RUN = "run.json"
"""Beside weights of Long Range Arena: preset, attention, steps, seed, data and machine of the run."""
DATA_RECORD = json_with("data", FINGERPRINT)
OF_A_CHECKPOINT = tuple(f"checkpoint*.{ending}" for ending in ("pt*", "json", "md", "png", "npy", "tsv"))
"""Checkpoints, and what is measured, drawn or predicted beside them."""
BESIDE_A_CHECKPOINT = (RUN_DATA, GLUE_TASK, LRA_RUN, *VOCABULARY_FILES)
"""What a checkpoint was trained on, and the numbers of its words."""
LEFT_BY_A_RUN = (*OF_A_CHECKPOINT, "train*.log", "tensorboard", *BESIDE_A_CHECKPOINT)
HALF = ".????????.checkpoint*.pt.tmp"
EVENTS = "tensorboard/**/events.out.tfevents.*"
LEFT_BY_A_START = (LOG, *BESIDE_A_CHECKPOINT, HALF, EVENTS)
"""Files that a run writes before its first checkpoint, in its own folder."""
ASIDE = re.compile(r"earlier-\d+")
"""Names of the folders to which --fresh, and a start after one that saved nothing, move files."""
SAVED = re.compile(r"checkpoint(_last|_best|\d+|_\d+_\d+|\.best_.+_-?\d+\.\d+)\.pt")
"""Names that fairseq gives to checkpoints."""


@dataclass(frozen=True)
class RunFolder:
    """A folder and the run that belongs in it.

    `option` names another folder. A run of a study has the name of its `command` and the fingerprint
    `settings`, which mark the folder.
    """

    path: Path
    option: str = "--save-dir"
    command: str = ""
    settings: str = ""

    @property
    def log(self) -> Path:
        """The log of the training."""
        return self.path / LOG

    @property
    def is_begun(self) -> bool:
        """Whether there is a checkpoint of any kind, from which the run resumes."""
        return any(self.path.glob("checkpoint*.pt"))

    @property
    def is_failed_start(self) -> bool:
        """Whether all of its files of a run were written before the first checkpoint."""
        path = self.path / RUN_DATA
        return path.is_file() and DATA_RECORD(path) and not self.is_begun

    @property
    def trained_at(self) -> str | None:
        """The commit with which its training began; None if its mark names none, as those of older runs."""
        return read_json(self.path / RUN_MARK).get(COMMIT)

    def checkpoints(self) -> list[Path]:
        """The checkpoints that fairseq has saved, not copies that the user has named."""
        return [path for path in self.path.glob("checkpoint*.pt") if SAVED.fullmatch(path.name)]

    def checkpoint(self, name: str) -> Path:
        """The checkpoint `best` or `last`; the other one if only that was saved."""
        wanted, other = (LAST, BEST) if name == "last" else (BEST, LAST)
        is_other = not (self.path / wanted).is_file() and (self.path / other).is_file()
        return self.path / (other if is_other else wanted)

    @contextmanager
    def lock(self, patience: float = 0) -> Iterator[int]:
        """Keep other runs out, see `run_lock`; UserError if the folder is not a run of `command`."""
        if self.command and not is_run(self.path, self.command):
            begin(self.path, self.command, self.settings)
        with run_lock(self.path, patience, self.option) as descriptor:
            yield descriptor

    def begin(self) -> None:
        """Mark it with the settings of its run; UserError if it holds checkpoints of another run.

        Removes the leftovers of a start without a checkpoint; files that no run writes stay.
        """
        if not self.is_begun:
            for path in [path for pattern in LEFT_BY_A_START for path in self.path.glob(pattern)]:
                path.unlink()
            mark = {"command": self.command, FINGERPRINT: self.settings, COMMIT: commit()}
            write_json(self.path / RUN_MARK, mark)
        begin(self.path, self.command, self.settings)

    def keep_only(self, kept: Path | None) -> None:
        """Remove all checkpoints except `kept`."""
        for path in self.checkpoints():
            if path != kept:
                path.unlink(missing_ok=True)  # another command may be doing the same


def check_vocabulary(source: Path, save_dir: Path, option: str = "--save-dir") -> None:
    """UserError if `save_dir` holds a run with another dictionary or tokeniser than `source`."""
    for name in VOCABULARY_FILES:
        kept, given = save_dir / name, source / name
        if kept.is_file() and given.is_file() and not filecmp.cmp(kept, given, shallow=False):
            what = "dictionary" if name == DICTIONARY else "tokeniser"
            raise UserError(
                f"{save_dir} holds a run with another {what} than {source}; choose another {option}"
            )


def keep_vocabulary(
    source: Path, save_dir: Path, failed_start: bool = False, option: str = "--save-dir"
) -> None:
    """Copy the dictionary and tokeniser of `source`; UserError if another run's are there.

    Those of a `failed_start` are replaced. `option` is the flag that names another folder.
    """
    if not failed_start:
        check_vocabulary(source, save_dir, option)
    for name in VOCABULARY_FILES:
        kept, given = save_dir / name, source / name
        if given.is_file() and not (kept.is_file() and filecmp.cmp(kept, given, shallow=False)):
            write_atomically(kept, given.read_bytes())
        elif failed_start and not given.is_file():
            kept.unlink(missing_ok=True)


def left_by_a_run(folder: Path, data: Path | None = None) -> list[Path]:
    """The files of a run in `folder`, without dictionary and tokeniser if it also holds the `data`."""
    found = (path for pattern in LEFT_BY_A_RUN for path in sorted(folder.glob(pattern)))
    kept = VOCABULARY_FILES if data and data.resolve() == folder.resolve() else ()
    return list(dict.fromkeys(path for path in found if path.name not in kept))  # some match two patterns


def logged_by_a_start(folder: Path) -> list[Path]:
    """Log and curves in `folder`, to which its next training would append."""
    curves = [folder / "tensorboard"] if any(folder.glob(EVENTS)) else []
    return [path for path in (folder / LOG, *curves) if path.exists()]


def move_aside(folder: Path, left: Sequence[Path], why: str = "") -> None:
    """Move the files `left` in `folder` to a new folder inside it, and say so; nothing is deleted."""
    if not left:
        return
    number = 1
    while (aside := folder / f"earlier-{number}").exists():
        number += 1
    aside.mkdir()
    for path in left:
        path.rename(aside / path.name)
    print(f"{why}moved to {aside}: {', '.join(path.name for path in left)}", flush=True)


def is_aside(path: Path, folder: Path) -> bool:
    """Whether `path`, which lies in `folder`, was moved aside there."""
    return any(ASIDE.fullmatch(part) for part in path.relative_to(folder).parts)
