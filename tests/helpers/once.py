"""Folders that the processes of a parallel run share, so that they are filled once."""

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path


def filled_once(tmp_path_factory, name: str, fill: Callable[[Path], object]) -> Path:
    """The folder `name`, which the first process that asks fills; others wait. Tests only read it."""
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent
    folder, done = base / name, base / f"{name}.done"
    with open(base / f"{name}.lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            if not done.exists():
                shutil.rmtree(folder, ignore_errors=True)  # leftovers of a failed attempt
                folder.mkdir()
                fill(folder)
                done.touch()
        finally:
            fcntl.flock(lock, fcntl.LOCK_UN)  # processes forked by `fill` may still have it open
    return folder
