"""Work in several processes, which die with their parent and leave Ctrl-C to it."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from typing import TYPE_CHECKING

from pipeline.errors import UserError
from pipeline.provenance import usable_cores

if TYPE_CHECKING:
    from pipeline.data.tokenization import TextEncoder

BYTES_PER_WORKER = 4_000_000
MOST_WORKERS = 16
TEXTS_AT_ONCE = 1_000
BATCHES_AT_ONCE = 8
"""For each process: what is read ahead, and then waited for."""

_encoder: "TextEncoder | None"  # of a worker process


def worker_pool(processes: int, encoder: "TextEncoder | None" = None) -> ProcessPoolExecutor:
    """A pool of workers that `_encode` with the `encoder`; forked, so that they have what is loaded here."""
    context = multiprocessing.get_context("fork")
    return ProcessPoolExecutor(processes, context, _start, (encoder,))


def worker_count(size: int) -> int:
    """Processes worth starting for a text of `size` bytes."""
    return max(1, min(usable_cores(), size // BYTES_PER_WORKER, MOST_WORKERS))


def encode_all(encoder: "TextEncoder", texts: Iterable[str], workers: int) -> Iterator[str]:
    """The tokens of each text in the texts' order, the same for any number of processes."""
    if workers == 1:
        yield from map(encoder.encode, texts)
        return
    texts = iter(texts)
    with worker_pool(workers, encoder) as pool:
        while batch := list(islice(texts, workers * BATCHES_AT_ONCE * TEXTS_AT_ONCE)):
            try:
                yield from pool.map(_encode, batch, chunksize=TEXTS_AT_ONCE)
            except BrokenProcessPool:
                raise UserError(
                    "an encoding process was killed, perhaps for want of memory; free some and run "
                    "the same command again"
                ) from None


def _encode(text: str) -> str:
    return _encoder.encode(text)


def _start(encoder: "TextEncoder | None") -> None:
    global _encoder
    _encoder = encoder
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which ends the pool
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A killed parent cannot end the pool, whose processes would wait for work for ever."""
    multiprocessing.parent_process().join()
    os._exit(1)
