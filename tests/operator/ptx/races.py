"""Finds accesses to shared memory that no barrier orders.

Between two barriers of a block (an epoch) a place that one thread writes must be neither read nor written by
another warp, nor by another lane of its warp unless bar.warp.sync comes between. A place is two bytes. Of the
readers of a place one is remembered, or that there were several.
"""

from collections import Counter

import numpy as np
from numpy.typing import NDArray

_NOBODY, _SEVERAL = -1, -2


class Races:
    """The detector: `found` counts conflicts by their kind and the instruction that came second."""

    def __init__(self, blocks: int, threads: int, places: int):
        """For blocks of so many threads and a multiple of 64 places each."""
        threads_of_all = np.arange(blocks * threads)
        self.thread, self.warp = threads_of_all, threads_of_all // 32
        self.epochs, self.warp_epochs = (np.ones(blocks * threads, np.int64) for _ in range(2))
        self.found: Counter[str] = Counter()
        count = blocks * places
        self.write_epoch, self.write_warp_epoch = np.zeros(count, np.int64), np.zeros(count, np.int64)
        self.read_epoch, self.read_warp_epoch = np.zeros(count, np.int64), np.zeros(count, np.int64)
        self.writer, self.reader, self.reading_warp = (np.full(count, _NOBODY) for _ in range(3))
        self.arriving = np.zeros(count, bool)

    def block_barrier(self, threads: NDArray) -> None:
        self.epochs[threads] += 1
        self.warp_epochs[threads] += 1

    def warp_barrier(self, threads: NDArray) -> None:
        self.warp_epochs[threads] += 1

    def read(self, threads: NDArray, at: NDArray, size: int, text: str) -> None:
        """Each thread reads `size` bytes from `at`."""
        threads, places = self._places(threads, at, size)
        self._conflicts_with_write("read after write", threads, places, text)
        self._count("read of a copy under way", self.arriving[places], text)
        warp, epoch, warp_epoch = self.warp[threads], self.epochs[threads], self.warp_epochs[threads]
        fresh = self.read_epoch[places] == epoch
        alone = ~fresh | (self.reading_warp[places] == warp)
        same = fresh & alone & (self.read_warp_epoch[places] == warp_epoch)
        lanes = np.where(same & (self.reader[places] != threads), _SEVERAL, threads)
        warps = np.where(alone, warp, _SEVERAL)
        self.reader[places], self.reading_warp[places] = lanes, warps
        # Several threads at once: only the last one was written down.
        self.reader[places[self.reader[places] != lanes]] = _SEVERAL
        self.reading_warp[places[self.reading_warp[places] != warps]] = _SEVERAL
        self.read_epoch[places], self.read_warp_epoch[places] = epoch, warp_epoch

    def write(self, threads: NDArray, at: NDArray, size: int, text: str) -> None:
        threads, places = self._places(threads, at, size)
        self._check_write(threads, places, text)
        self._mark_written(threads, places)
        # Several threads at once: only the last one was written down.
        far = self.warp[self.writer[places]] != self.warp[threads]
        self._count("write after write by another warp", far, text)

    def begin_copy(self, threads: NDArray, at: NDArray, size: int, text: str) -> None:
        """From now to `end_copy` nobody may touch these bytes."""
        threads, places = self._places(threads, at, size)
        self._check_write(threads, places, text)
        self.arriving[places] = True

    def end_copy(self, threads: NDArray, at: NDArray, size: int, text: str) -> None:
        threads, places = self._places(threads, at, size)
        self.arriving[places] = False
        self._mark_written(threads, places)

    @staticmethod
    def _places(threads: NDArray, at: NDArray, size: int) -> tuple[NDArray, NDArray]:
        count = max(size // 2, 1)
        if count == 1:
            return threads, at // 2
        return np.repeat(threads, count), (at[:, None] // 2 + np.arange(count)).ravel()

    def _count(self, what: str, conflicts: NDArray[np.bool_], text: str) -> None:
        if conflicts.any():
            self.found[f"{what}: {text}"] += int(conflicts.sum())

    def _conflicts_with_write(self, what: str, threads: NDArray, places: NDArray, text: str) -> None:
        writer = self.writer[places]
        other = (writer != threads) & (self.write_epoch[places] == self.epochs[threads])
        if not other.any():
            return
        far = other & (self.warp[writer] != self.warp[threads])
        self._count(f"{what} by another warp", far, text)
        near = other & ~far & (self.write_warp_epoch[places] == self.warp_epochs[threads])
        self._count(f"{what} by another lane", near, text)

    def _check_write(self, threads: NDArray, places: NDArray, text: str) -> None:
        epoch, warp = self.epochs[threads], self.warp[threads]
        fresh = self.read_epoch[places] == epoch
        if fresh.any():
            far = fresh & (self.reading_warp[places] != warp)
            self._count("write after read by another warp", far, text)
            near = fresh & ~far & (self.reader[places] != threads)
            near &= self.read_warp_epoch[places] == self.warp_epochs[threads]
            self._count("write after read by another lane", near, text)
        writer = self.writer[places]
        far = (self.write_epoch[places] == epoch) & (self.warp[writer] != warp)
        self._count("write after write by another warp", far, text)
        self._count("write to a copy under way", self.arriving[places], text)

    def _mark_written(self, threads: NDArray, places: NDArray) -> None:
        self.writer[places] = threads
        self.write_epoch[places] = self.epochs[threads]
        self.write_warp_epoch[places] = self.warp_epochs[threads]
