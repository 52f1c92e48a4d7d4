"""Global, shared and parameter memory of a launch."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .races import Races
from .values import UNSIGNED


class Fault(Exception):
    """An error of the kernel: an access out of bounds or misaligned, a deadlock."""


class _Memory:
    """Bytes that are read and written as numbers of 1 to 8 bytes."""

    def __init__(self, data: NDArray[np.uint8]):
        self.views = {size: data.view(kind) for size, kind in UNSIGNED.items()}

    def load(self, places: NDArray[np.int64], size: int) -> NDArray:
        return self.views[size][places // size]

    def store(self, places: NDArray[np.int64], size: int, values: NDArray) -> None:
        self.views[size][places // size] = values

    def rows(self, places: NDArray[np.int64], size: int) -> NDArray[np.uint8]:
        """`size` bytes from each place."""
        return self.views[1][places[:, None] + np.arange(size)]


class GlobalMemory(_Memory):
    """Memory of this process in which only some ranges may be touched."""

    def __init__(self, ranges: Sequence[tuple[int, int]]):
        """`ranges` are addresses and sizes."""
        ranges = sorted(x for x in ranges if x[1] > 0)
        self.starts = np.array([x for x, _ in ranges], np.int64)
        self.ends = np.array([x + size for x, size in ranges], np.int64)
        self.first = int(self.starts[0]) // 16 * 16
        size = -(-(int(self.ends[-1]) - self.first) // 16) * 16
        memory = (ctypes.c_uint8 * size).from_address(self.first)
        super().__init__(np.frombuffer(memory, np.uint8))

    def places(self, addresses: NDArray[np.int64], size: int, text: str) -> NDArray[np.int64]:
        """Offsets from the first byte, of accesses of so many bytes each."""
        number = np.searchsorted(self.starts, addresses, "right") - 1
        if (number < 0).any() or (addresses + size > self.ends[number]).any():
            raise Fault(f"out of bounds: {text}")
        if (addresses % size).any():
            raise Fault(f"misaligned: {text}")
        return addresses - self.first


class SharedMemory(_Memory):
    """The shared memory of all blocks, NaN at first; it reports accesses to the race detector."""

    def __init__(self, blocks: int, size: int, races: Races):
        self.size, self.pitch, self.races = size, -(-size // 128) * 128, races
        super().__init__(np.full(blocks * self.pitch, 0xFF, np.uint8))

    def places(self, addresses: NDArray, block: NDArray, size: int, text: str) -> NDArray[np.int64]:
        if (addresses < 0).any() or (addresses + size > self.size).any():
            raise Fault(f"out of bounds: {text}")
        if (addresses % size).any():
            raise Fault(f"misaligned: {text}")
        return block * self.pitch + addresses

    def set_rows(self, places: NDArray[np.int64], rows: NDArray[np.uint8] | int, size: int) -> None:
        self.views[1][places[:, None] + np.arange(size)] = rows


@dataclass
class Copies:
    """cp.async of several threads that have not arrived."""

    threads: NDArray[np.int64]
    to: NDArray[np.int64]
    source: NDArray[np.int64]
    wanted: NDArray[np.bool_]
    size: int
    group: NDArray[np.int64]

    def part(self, which: NDArray[np.bool_]) -> "Copies":
        arrays = (self.threads, self.to, self.source, self.wanted)
        return Copies(*(x[which] for x in arrays), self.size, self.group[which])


class AsyncCopies:
    """cp.async: the copy is there only once its thread has waited for its group."""

    def __init__(self, memory: GlobalMemory, shared: SharedMemory, threads: int):
        self.memory, self.shared = memory, shared
        self.groups = np.zeros(threads, np.int64)  # closed ones of each thread
        self.pending: list[Copies] = []

    def start(self, copies: Copies, text: str) -> None:
        self.shared.races.begin_copy(copies.threads, copies.to, copies.size, text)
        self.shared.set_rows(copies.to, 0xFF, copies.size)
        self.pending.append(copies)

    def wait(self, threads: NDArray[np.int64], allowed: int, text: str) -> None:
        """Until at most `allowed` groups of these threads, the last ones, are unfinished."""
        waiting = np.zeros(len(self.groups), bool)
        waiting[threads] = True
        left = []
        for copies in self.pending:
            done = waiting[copies.threads] & (copies.group < self.groups[copies.threads] - allowed)
            if done.any():
                self._finish(copies.part(done), text)
            if not done.all():
                left.append(copies.part(~done))
        self.pending = left

    def _finish(self, copies: Copies, text: str) -> None:
        data = np.zeros((len(copies.to), copies.size), np.uint8)
        data[copies.wanted] = self.memory.rows(copies.source[copies.wanted], copies.size)
        self.shared.races.end_copy(copies.threads, copies.to, copies.size, text)
        self.shared.set_rows(copies.to, data, copies.size)
