"""Where a command may write: it replaces only its own results, and no other run is at work there.

Anything else is refused before the work.
"""

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from conventions import LOCKED, OUT_OF_SPACE, PREPARED
from conventions.files import hold_lock, is_plain
from lab.errors import UserError
from lab.files import ROOT, read_json, shown_path

Ours = Callable[[Path], bool]
"""Whether a file that exists is a result of the command."""

# Folders of the project itself, which take no results; `results` holds those of the documents.
OWN = (".ci", ".git", ".venv", "benchmarks", "causal_linear_attention", "configs", "conventions")
OWN += ("data-prep", "docs", "lab", "scripts", "tests", "user_dir")
LARGEST_RECORD = 64 * 2**20
"""Bytes; every record of a command is far smaller."""
MARK = "<!-- linear-attention has generated this page: what is changed here is lost -->"
"""The first line of every generated page."""


def check_output(
    out: Path,
    ours: Ours,
    inputs: Iterable[Path | None] = (),
    beside: Iterable[str] = (),
    option: str = "--out",
    makes_folder: bool = False,
) -> None:
    """UserError unless the file `out`, and those that go `beside` it by their endings, can be written.

    An ending replaces that of `out`: with ".md" or ".png", `a.json` has `a.md` or `a.png` beside it.

    An existing `out` is replaced only if it is `ours`, those beside it only together with it. None may be
    one of the `inputs`, by whatever name. The folder must exist, unless the work `makes_folder`.
    """
    try:
        if out.is_dir():
            raise UserError(f"cannot write {out}, which is a folder; name a file with {option}")
        folder = out.absolute().parent
        usable = (makes_folder or folder.is_dir()) and _can_hold(folder)
    except OSError:
        usable = False
    if not usable:
        raise UserError(f"cannot write {out}; choose another {option}")
    companions = [out.with_name(out.stem + ending) for ending in beside]
    if out in companions:
        raise UserError(
            f"{option} is {out}, but this command writes {out.suffix} beside it; take another ending"
        )
    for file, read in product((out, *companions), filter(None, inputs)):
        if file.exists() and read.exists() and file.samefile(read):
            raise UserError(f"{file} is read by this command; name another file with {option}")
    replaces = is_plain(out) and ours(out)
    for file in (out, *companions):
        generated = file is out or is_generated(file)
        if os.path.lexists(file) and not (replaces and is_plain(file) and generated):
            raise UserError(
                f"{file} is no result of this command; move it away, or name another file with {option}"
            )
    _check_not_own(out.absolute().parent, out, option)
    _check_not_prepared(out.absolute().parents, out, option)


def say_replaced(out: Path) -> None:
    """Say that a result of the command that does not tell its checkpoint will be replaced."""
    if out.is_file():
        print(f"note: {shown_path(out)}, perhaps of another checkpoint, will be replaced", flush=True)


def is_generated(path: Path) -> bool:
    """Whether a page or a picture has the mark of those that are generated here; True for other files."""
    sign = GENERATED.get(path.suffix)
    return is_plain(path) and (sign is None or sign(path))


def marked(page: str) -> str:
    """A page with its mark."""
    return f"{MARK}\n\n{page}"


def check_output_folder(folder: Path, option: str, takes_prepared: bool = False) -> None:
    """UserError unless results can go into `folder`, which need not exist yet.

    It must be neither one of the project's own folders nor inside prepared data; it may be prepared data
    itself if the command `takes_prepared`.
    """
    folder = folder.absolute()
    if "${" in str(folder):
        raise UserError(f"{folder} has a ${{...}}, which fairseq fills in; choose another {option}")
    if folder.resolve() == Path(folder.anchor):
        raise UserError(f"{folder} is the root of the file system; choose another {option}")
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; name a folder with {option}")
    _check_not_own(folder, folder, option)
    if folder.resolve() == ROOT:
        raise UserError(f"{folder} is the project's own folder; choose another {option}")
    _check_not_prepared(folder.parents if takes_prepared else (folder, *folder.parents), folder, option)
    try:
        usable = _can_hold(folder)
    except OSError as error:
        if error.errno in OUT_OF_SPACE:
            raise
        usable = False
    if not usable:
        raise UserError(f"the folder {folder} cannot be made or written in; choose another {option}")


def _can_hold(folder: Path) -> bool:
    """Whether files can be written in `folder`, or it can be made; may raise OSError.

    Permissions alone say nothing to root, nor of /proc.
    """
    while not os.path.lexists(folder):  # a link that leads nowhere is there
        folder = folder.parent
    if not folder.is_dir():
        return False
    with tempfile.TemporaryFile(dir=folder):
        return True


def _check_not_prepared(folders: Iterable[Path], named: Path, option: str) -> None:
    for above in folders:
        if (above / PREPARED).is_file():
            raise UserError(f"{above} holds prepared data; choose another {option} than {shown_path(named)}")


def _check_not_own(folder: Path, named: Path, option: str) -> None:
    for name in OWN:
        if folder.resolve().is_relative_to(ROOT / name):
            raise UserError(
                f"{named} is in {ROOT / name}, which belongs to the project; choose another {option}"
            )


def json_with(*keys: str, **values: Any) -> Ours:
    """Recognises a JSON object by its `keys` and `values`."""

    def ours(path: Path) -> bool:
        if path.stat().st_size > LARGEST_RECORD:
            return False
        try:
            record = read_json(path)
        except UserError:
            return False
        return (
            isinstance(record, dict)
            and set(keys) <= set(record)
            and all(record.get(key) == value for key, value in values.items())
        )

    return ours


def begins(sign: str, within: int = 0) -> Ours:
    """Recognises a file by `sign` at its beginning, or after at most `within` bytes."""
    wanted = sign.encode()

    def ours(path: Path) -> bool:
        with path.open("rb") as file:
            return wanted in file.read(within + len(wanted))

    return ours


GENERATED = {".md": begins(MARK), ".png": begins("tEXtSource\0", within=300)}
"""How pages and pictures are recognised; `lab/publish/plots.py` gives every picture a Source."""


@contextmanager
def run_lock(folder: Path, patience: float = 0, option: str = "--save-dir") -> Iterator[int]:
    """Keep other runs out of `folder`; gives the descriptor that holds the lock.

    A run that is there already may take `patience` seconds to end. `option` chooses another folder.

    The lock lasts as long as any process has the descriptor open, so a child that inherits it keeps
    the folder even if its parent is killed. UserError names the host and process that has it.
    """
    descriptor = hold_lock(folder, option, partial(print, flush=True), patience)
    try:
        with _said_to_children(folder):
            yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _said_to_children(folder: Path) -> Iterator[None]:
    """Within it, processes that are started know that they need no lock of their own for `folder`."""
    before = os.environ.get(LOCKED)
    os.environ[LOCKED] = str(folder.resolve())
    try:
        yield
    finally:
        if before is None:
            del os.environ[LOCKED]
        else:
            os.environ[LOCKED] = before
