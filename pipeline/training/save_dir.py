"""The folder of a training run: the files next to the checkpoints, and the remains of an interrupted save."""

import filecmp
import os
import shutil
import zipfile
from pathlib import Path

from pipeline.data.text_encoding import DICTIONARY, VOCABULARY_FILES
from pipeline.errors import UserError
from pipeline.files import write_atomically

LAST = "checkpoint_last.pt"


def prepare_save_dir(save_dir: Path, data: Path) -> None:
    """Make the folder, keep the vocabulary of `data` in it, and mend what an interrupted save has left.

    fairseq copies the newest checkpoint to checkpoint_last.pt; a run that is killed in the middle
    leaves half a file. The checkpoint it was copied from is complete then, and takes its place.
    """
    save_dir.mkdir(parents=True, exist_ok=True)
    keep_vocabulary(data, save_dir)
    if not mend_last(save_dir):
        raise UserError(f"{save_dir / LAST} is damaged and there is no other; remove it to start anew")


def mend_last(save_dir: Path) -> bool:
    """Replace a damaged checkpoint_last.pt by the newest complete checkpoint, and say so.

    Returns False if there is none to put there.
    """
    last = save_dir / LAST
    if not last.exists() or zipfile.is_zipfile(last):
        return True
    newest = newest_whole(save_dir)
    if newest is None:
        return False
    print(f"{last.name} is incomplete; going on from {newest.name}", flush=True)
    copy = last.with_suffix(".part")
    shutil.copyfile(newest, copy)
    os.replace(copy, last)
    return True


def keep_vocabulary(source: Path, save_dir: Path) -> None:
    """Copies of the dictionary and the tokeniser of `source`; UserError if others are there."""
    for name in VOCABULARY_FILES:
        if (source / name).is_file():
            keep_file(source / name, save_dir)


def keep_file(source: Path, save_dir: Path) -> None:
    """A copy of `source` in the folder; UserError if another file of that name is there."""
    kept = save_dir / source.name
    if not kept.exists():
        write_atomically(kept, source.read_bytes())
    elif not filecmp.cmp(kept, source, shallow=False):
        what = "dictionary" if source.name == DICTIONARY else "tokeniser"
        raise UserError(
            f"{save_dir} holds a run with another {what} than {source.parent}; choose another --save-dir"
        )


def newest_whole(folder: Path) -> Path | None:
    """The newest complete checkpoint of a folder, None if there is none."""
    whole = [path for path in folder.glob("checkpoint*.pt") if zipfile.is_zipfile(path)]
    return max(whole, key=lambda path: path.stat().st_mtime, default=None)


def is_half_written(path: Path) -> bool:
    """Whether it is the beginning of a checkpoint and no more (torch writes zip archives)."""
    with path.open("rb") as file:
        start = file.read(4)
    return start in (b"", b"PK\x03\x04") and not zipfile.is_zipfile(path)


def whole_checkpoint(path: Path) -> Path:
    """`path`, or the newest complete checkpoint beside it if an interrupted save has left half of it.

    Says which one it takes. UserError if there is none.
    """
    if not path.is_file() or not is_half_written(path):
        return path
    newest = newest_whole(path.parent)
    if newest is None:
        raise UserError(f"{path} is incomplete and there is no other checkpoint beside it; train again")
    print(f"{path.name} is incomplete; taking {newest.name}", flush=True)
    return newest
