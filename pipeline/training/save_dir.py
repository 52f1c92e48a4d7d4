"""The folder of a training run: the files next to the checkpoints, and the remains of an interrupted save."""

import filecmp
import zipfile
from pathlib import Path

from pipeline.data.text_encoding import DICTIONARY, VOCABULARY_FILES
from pipeline.errors import UserError
from pipeline.files import write_atomically
from pipeline.outputs import check_output_folder
from pipeline.training.process.resume import newest_whole


def make_save_dir(path: Path) -> None:
    """Make the folder of a run; UserError where there can be none, or nothing can be written in it."""
    check_output_folder(path, "--save-dir")
    path.mkdir(parents=True, exist_ok=True)


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
