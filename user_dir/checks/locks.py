"""One run at a time in a folder: fairseq's own commands take the lock that this project's commands take."""

import logging
import os
from pathlib import Path

from conventions import LOCK, LOCKED
from conventions.files import hold_lock

from ..errors import UserError

logger = logging.getLogger(__name__)

_held: set[Path] = set()
"""Folders whose lock this process has taken."""


def lock_save_dir(save_dir: str) -> None:
    """Keep other runs out of a run's folder until this process ends, however it ends.

    A command that holds the lock and has started this process says so in `LOCKED`. Where the file system has
    no locks, a warning is logged. The workers of data loaders do not keep the lock.

    Raises:
        UserError: naming host and process of the run that is at work there.
    """
    folder = Path(save_dir).resolve()
    if folder in _held or os.environ.get(LOCKED) == str(folder):
        return
    try:
        descriptor = hold_lock(Path(save_dir), "--save-dir", logger.warning)
    except OSError as error:
        raise UserError(
            f"{folder / LOCK}, the run's lock file, cannot be opened ({error.strerror}); move it away, or "
            "choose another --save-dir"
        ) from None
    os.environ[LOCKED] = str(folder)
    _held.add(folder)
    os.register_at_fork(after_in_child=lambda: os.close(descriptor))
