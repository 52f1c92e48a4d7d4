"""Work in several processes, which die with their parent and leave Ctrl-C to it."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

from lab.provenance import usable_cores

BYTES_PER_WORKER = 4_000_000
MOST_WORKERS = 16


def worker_pool(processes: int, begin: Callable[[], None] | None = None) -> ProcessPoolExecutor:
    """A pool of workers, each of which calls `begin` first; forked, so that they have what is loaded here."""
    context = multiprocessing.get_context("fork")
    return ProcessPoolExecutor(processes, context, _start, (begin,))


def worker_count(size: int) -> int:
    """Processes worth starting for a text of `size` bytes."""
    return max(1, min(usable_cores(), size // BYTES_PER_WORKER, MOST_WORKERS))


def _start(begin: Callable[[], None] | None) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which ends the pool
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if begin is not None:
        begin()


def _end_with_parent() -> None:
    """A killed parent cannot end the pool, whose processes would wait for work for ever."""
    multiprocessing.parent_process().join()
    os._exit(1)
