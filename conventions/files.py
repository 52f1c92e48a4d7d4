"""Files that are written whole or not at all, logs and locks; none of them touches a foreign file."""

import contextlib
import fcntl
import os
import re
import secrets
import socket
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from conventions import LOCK, UserError

NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
THERE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a pipe must not wait for its other end
HOLDER = b"process "
"""How a lock file begins that has had a holder."""


@contextlib.contextmanager
def replacing(path: Path, ending: str = ".part") -> Iterator[Path]:
    """Gives a new file beside `path` to write; when it is whole, it becomes `path`, else it goes.

    Its name is its own, so it replaces nothing. Leftovers of killed processes are removed, too. An OSError
    names `path`.
    """
    partial, descriptor = _new_partial(path, ending)
    try:
        yield partial
        os.replace(partial, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        if isinstance(error, OSError) and error.errno and error.filename in (None, str(partial)):
            error.filename, error.filename2 = str(path), None
        raise
    finally:
        os.close(descriptor)


def partials_of(path: Path, ending: str = ".part") -> list[Path]:
    """The files that `replacing` has begun for `path` and not finished."""
    name = re.compile(rf"\.[0-9a-f]{{8}}\.{re.escape(path.name + ending)}")
    try:
        return [one for one in path.parent.iterdir() if name.fullmatch(one.name)]
    except OSError:  # a folder that may be written in, not read
        return []


def _new_partial(path: Path, ending: str) -> tuple[Path, int]:
    """A new file for `path`, and the descriptor that locks it while it is written."""
    for left in partials_of(path, ending):
        remove_if_left(left)
    while True:
        partial = path.with_name(f".{secrets.token_hex(4)}.{path.name}{ending}")
        try:
            descriptor = os.open(partial, NEW, 0o666)
        except FileExistsError:
            continue
        except OSError as error:
            error.filename = str(path)
            raise
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if is_at(descriptor, partial):  # else another process has taken it for one that was left
            return partial, descriptor
        os.close(descriptor)


def remove_if_left(path: Path) -> None:
    """Remove a file that no process writes any more."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | THERE)
        try:
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
        finally:
            os.close(descriptor)


def open_lock(path: Path) -> int:
    """A descriptor of the lock file `path`, made if need be; UserError for a foreign file or a link."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | THERE, 0o666)
    except OSError:
        if path.is_symlink():
            raise UserError(f"{path} is a link where a lock belongs; move it away") from None
        raise
    about = os.fstat(descriptor)
    if stat.S_ISREG(about.st_mode) and os.pread(descriptor, len(HOLDER), 0) in (b"", HOLDER):
        return descriptor
    os.close(descriptor)
    raise UserError(f"{path} is not a lock file of this project, which needs that name; move it away")


def hold_lock(folder: Path, option: str, warn: Callable[[str], None], patience: float = 0) -> int:
    """Keep other runs out of `folder`, which is made if need be, as long as the descriptor given is open.

    A run at work there may take `patience` seconds to end. If the file system lacks locks, `warn` gets a
    sentence.

    Raises:
        UserError: naming process and host of the run that is at work there; `option` chooses another folder.
    """
    path = folder / LOCK
    descriptor = _lock_of(path)
    try:
        _lock(descriptor, patience)
        while not is_at(descriptor, path):  # the run that was waited for has removed it
            removed, descriptor = descriptor, _lock_of(path)
            os.close(removed)
            _lock(descriptor, patience)
    except BlockingIOError:
        holder = os.read(descriptor, 1000).decode(errors="replace") or "another process"
        os.close(descriptor)
        raise UserError(
            f"{folder} is in use by {holder}; wait until that run has ended, or choose another {option}"
        ) from None
    except OSError as error:
        warn(f"{folder} cannot be locked ({error.strerror}); start no second run there")
    with contextlib.suppress(OSError):  # a full disk ends the run at the first file that it needs
        os.ftruncate(descriptor, 0)
        os.write(descriptor, HOLDER + f"{os.getpid()} on {socket.gethostname()}".encode())
    return descriptor


def _lock_of(path: Path) -> int:
    """The lock's file, which a run that ends early removes together with its folder."""
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            return open_lock(path)
        except FileNotFoundError:
            continue
        except FileExistsError:  # which mkdir raises, too, if the folder vanishes while it looks at it
            if path.parent.exists() and not path.parent.is_dir():
                raise


def _lock(descriptor: int, patience: float) -> None:
    end = time.monotonic() + patience
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= end:
                raise
            time.sleep(0.2)


def open_to_append(path: Path) -> BinaryIO:
    """A log, or a download, to write at its end; it is made if need be. UserError for a link or a pipe."""
    try:
        file = open(path, "ab", opener=lambda name, flags: os.open(name, flags | THERE, 0o666))  # noqa: SIM115
    except OSError:
        if os.path.lexists(path) and not is_plain(path):
            raise UserError(f"{path} is not a regular file; move it away") from None
        raise
    if is_plain(path):
        return file
    file.close()
    raise UserError(f"{path} is not a regular file; move it away")


def is_plain(path: Path) -> bool:
    """Whether a file is there that can be read to its end: no folder, pipe or device, and no link."""
    return path.is_file() and not path.is_symlink()


def check_no_pipe(folder: Path) -> None:
    """UserError for pipes and devices in a folder, or one level below: reading them may not end."""
    for path in (*folder.glob("*"), *folder.glob("*/*")):
        if path.exists() and not path.is_file() and not path.is_dir():
            raise UserError(f"{path} is a pipe or a device where a file belongs; move it away")


def is_at(descriptor: int, path: Path) -> bool:
    """Whether the open file is still the one at `path`."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except FileNotFoundError:
        return False
