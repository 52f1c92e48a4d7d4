"""One run at a time in a folder: fairseq's own commands take the lock that this project's commands take."""

import fcntl
import logging
import os
import socket
from contextlib import suppress
from pathlib import Path

from conventions import LOCK, LOCKED
from conventions.files import HOLDER, open_lock

from ..errors import UserError

logger = logging.getLogger(__name__)


def lock_save_dir(save_dir: str) -> None:
    """Keep other runs out of a run's folder until this process ends, however it ends.

    A command that holds the lock and has started this process says so in `LOCKED`. Where the file system has
    no locks, a warning is logged. The workers of data loaders do not keep the lock.

    Raises:
        UserError: naming host and process of the run that is at work there.
    """
    folder = Path(save_dir).resolve()
    if os.environ.get(LOCKED) == str(folder):
        return
    path = folder / LOCK
    try:
        descriptor = open_lock(path)
    except OSError as error:
        raise UserError(
            f"{path}, the lock of the run, cannot be opened ({error.strerror}); move it away, or choose "
            "another --save-dir"
        ) from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(descriptor, 1000).decode(errors="replace") or "another process"
        os.close(descriptor)
        raise UserError(
            f"{save_dir} is in use by {holder}; wait until that run has ended, or choose another --save-dir"
        ) from None
    except OSError as error:
        logger.warning("%s cannot be locked (%s); start no second run there", save_dir, error.strerror)
    with suppress(OSError):  # a full disk ends the run at the first file that it needs
        os.ftruncate(descriptor, 0)
        os.write(descriptor, HOLDER + f"{os.getpid()} on {socket.gethostname()}".encode())
    os.environ[LOCKED] = str(folder)
    os.register_at_fork(after_in_child=lambda: os.close(descriptor))
