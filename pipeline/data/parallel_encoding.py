"""Byte-pair encoding in several processes; the order of the texts is kept."""

from collections.abc import Iterable, Iterator
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from typing import TYPE_CHECKING

from pipeline.data.workers import worker_pool
from pipeline.errors import UserError

if TYPE_CHECKING:
    from pipeline.data.text_encoding import TextEncoder

TEXTS_AT_ONCE = 1_000
BATCHES_AT_ONCE = 8
"""For each process: what is read ahead, and then waited for."""

_encoder: "TextEncoder"  # of a worker process


def encode_all(encoder: "TextEncoder", texts: Iterable[str], workers: int) -> Iterator[str]:
    """The tokens of each text, the same for any number of processes."""
    if workers == 1:
        yield from map(encoder.encode, texts)
        return
    texts = iter(texts)
    with worker_pool(workers, _start, encoder) as pool:
        while batch := list(islice(texts, workers * BATCHES_AT_ONCE * TEXTS_AT_ONCE)):
            try:
                yield from pool.map(_encode, batch, chunksize=TEXTS_AT_ONCE)
            except BrokenProcessPool:
                raise UserError(
                    "an encoding process was killed, perhaps for want of memory; free some and run "
                    "the same command again"
                ) from None


def _start(encoder: "TextEncoder") -> None:
    global _encoder
    _encoder = encoder


def _encode(text: str) -> str:
    return _encoder.encode(text)
