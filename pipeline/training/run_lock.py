"""One run at a time in a folder."""

import fcntl
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pipeline.errors import UserError

NAME = ".run.lock"
FLAGS = os.O_RDWR | os.O_CREAT
SECONDS_TO_WRITE = 60  # to wait for another sweep that writes its table


@contextmanager
def run_lock(folder: Path, patience: float = 0, option: str = "--save-dir") -> Iterator[int]:
    """Keep other runs out of `folder`; gives the descriptor that holds the lock.

    A run that is there already may take `patience` seconds to end. `option` chooses another folder.

    The lock lasts as long as any process has the descriptor open, so a child that inherits it keeps
    the folder even if its parent is killed. UserError names the host and process that has it.
    """
    path = folder / NAME
    descriptor = _open(path)
    try:
        try:
            _lock(descriptor, patience)
            while not _is_at(descriptor, path):  # the run that was waited for has removed it
                removed, descriptor = descriptor, _open(path)
                os.close(removed)
                _lock(descriptor, patience)
        except BlockingIOError:
            holder = os.read(descriptor, 1000).decode(errors="replace") or "another process"
            raise UserError(
                f"{folder} is in use by {holder}; wait until that run has ended, or choose another {option}"
            ) from None
        except OSError as error:
            print(f"{folder} cannot be locked ({error.strerror}); start no second run there", flush=True)
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode())
        yield descriptor
    finally:
        os.close(descriptor)


def _open(path: Path) -> int:
    """The lock's file, which a run that ends early removes together with its folder."""
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            return os.open(path, FLAGS, 0o666)


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether the open file is still the one at `path`."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _lock(descriptor: int, patience: float) -> None:
    end = time.monotonic() + patience
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= end:
                raise
            time.sleep(0.2)
