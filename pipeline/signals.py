"""SIGTERM and SIGUSR1 at a command: the training it has started saves and ends, and the command with it."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from conventions import INTERRUPTED, REQUESTS, STOPPED

_training: set[subprocess.Popen[bytes]] = set()
_asked: list[int] = []


@contextmanager
def handled() -> Iterator[None]:
    """Within it, a request to stop reaches what is training; if nothing is, it ends the command at once."""
    before = {number: signal.signal(number, _stop) for number in REQUESTS}
    try:
        yield
    finally:
        _asked.clear()
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop(number: int, frame: FrameType | None) -> None:
    _asked.append(number)
    if not _training:
        sys.exit(_code())
    for process in list(_training):
        process.send_signal(number)


def _code() -> int:
    return 128 + signal.SIGTERM if _asked[-1] == signal.SIGTERM else STOPPED


@contextmanager
def told(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Within it, a request to stop is handed to `process`, which saves its state and ends."""
    _training.add(process)
    try:
        if _asked:  # before it was there
            process.send_signal(_asked[-1])
        yield
    finally:
        _training.discard(process)


def end_if_asked() -> None:
    """End the command if a request to stop has come."""
    if _asked:
        sys.exit(_code())


def was_interrupted(returncode: int) -> bool:
    """Whether a Python process has ended by Ctrl-C.

    It exits with 130, or dies of the signal although it has caught KeyboardInterrupt: `python -m` does so if
    the signal came within an `exec` of text, with which every dataclass is made, so while it was importing.
    """
    return returncode in (INTERRUPTED, -signal.SIGINT)


def was_stopped(returncode: int) -> bool:
    """Whether a process that trained has ended because it was asked to."""
    return returncode == STOPPED or (bool(_asked) and -returncode in REQUESTS)
