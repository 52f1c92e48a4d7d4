"""The folder of a training run: the files next to the checkpoints, and the remains of an interrupted save."""

import filecmp
import os
import zipfile
from pathlib import Path

from pipeline.data.text_encoding import DICTIONARY, VOCABULARY_FILES
from pipeline.errors import OUT_OF_SPACE, UserError
from pipeline.files import write_atomically
from pipeline.training.process.resume import newest_whole


def make_save_dir(path: Path) -> None:
    """Make the folder of a run; UserError where there can be none, or nothing can be written in it."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise UserError(f"{path} is a file; name a folder with --save-dir") from None
    except OSError as error:
        if error.errno in OUT_OF_SPACE:
            raise
        raise UserError(
            f"the folder {path} cannot be made ({error.strerror}); choose another --save-dir"
        ) from None
    if not os.access(path, os.W_OK):
        raise UserError(f"nothing can be written in {path}; choose another --save-dir")


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
