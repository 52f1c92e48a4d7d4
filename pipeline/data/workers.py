"""Worker processes that die with their parent and leave Ctrl-C to it."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor


def worker_pool(
    processes: int, initializer: Callable[..., None] | None = None, *arguments: object
) -> ProcessPoolExecutor:
    """A pool of forked workers; each calls `initializer(*arguments)` first.

    Forked, so that what the parent has loaded is there already.
    """
    context = multiprocessing.get_context("fork")
    return ProcessPoolExecutor(processes, context, _start, (initializer, arguments))


def _start(initializer: Callable[..., None] | None, arguments: tuple[object, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which ends the pool
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if initializer:
        initializer(*arguments)


def _end_with_parent() -> None:
    """A killed parent cannot end the pool, whose processes would wait for work for ever."""
    multiprocessing.parent_process().join()
    os._exit(1)
