"""Generated data, made in blocks by all cores and kept block by block, so that a killed run resumes.

Each block has random numbers of its own: the data do not depend on the number of processes, nor on
how often the run was interrupted.
"""

import io
import itertools
import resource
import time
from collections.abc import Callable, Iterator
from concurrent.futures import as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import numpy as np
from tqdm import tqdm

from pipeline.data.processes import worker_pool
from pipeline.errors import UserError
from pipeline.files import write_atomically

Block = dict[str, np.ndarray]
MakeBlock = Callable[[int], Block]
SECONDS_BETWEEN_REPORTS = 15


class BlockStore:
    """The blocks that `make` makes, number by number, in files of `folder`.

    `make` is called in worker processes; a block holds `size` of `unit`.
    """

    def __init__(self, folder: Path, make: MakeBlock, size: int, unit: str, processes: int) -> None:
        self.folder = folder
        self.make = make
        self.size = size
        self.unit = unit
        self.processes = processes

    def __iter__(self) -> Iterator[Block]:
        """All blocks from the first on, without end; what is not there is made."""
        for number in itertools.count():
            if not self._path(number).is_file():
                self.require(number + 1)
            with np.load(self._path(number)) as arrays:
                yield dict(arrays)

    def require(self, count: int) -> None:
        """Make those of the first `count` blocks that are not there, and say how fast."""
        self.folder.mkdir(parents=True, exist_ok=True)
        missing = [number for number in range(count) if not self._path(number).is_file()]
        if len(missing) < count:
            print(f"Resuming: {(count - len(missing)) * self.size:,} {self.unit} are there.", flush=True)
        if not missing:
            return
        start, cpu = time.monotonic(), _cpu_seconds()
        try:
            with worker_pool(min(self.processes, len(missing))) as pool:
                jobs = [pool.submit(_make_file, self.make, number, self._path(number)) for number in missing]
                reported = start
                for done, job in enumerate(as_completed(jobs), 1):
                    job.result()
                    if time.monotonic() - reported > SECONDS_BETWEEN_REPORTS:
                        reported = time.monotonic()
                        self._report(done, len(missing), reported - start)
        except BrokenProcessPool:
            raise UserError(
                "a generating process was killed, perhaps for want of memory; run the same command again, "
                "which resumes, with fewer --processes"
            ) from None
        made, seconds, cpu = len(missing) * self.size, time.monotonic() - start, _cpu_seconds() - cpu
        print(
            f"Generated {made:,} {self.unit} in {seconds:,.1f} s with {self.processes} process(es): "
            f"{made / seconds:,.1f} a second, {made / cpu:,.1f} a second of CPU time.",
            flush=True,
        )

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:06d}.npz"

    def _report(self, done: int, wanted: int, seconds: float) -> None:
        made = done * self.size
        left = tqdm.format_interval((wanted - done) * seconds / done)
        print(
            f"  {made:,} of {wanted * self.size:,} {self.unit}, {made / seconds:,.1f} a second, {left} left",
            flush=True,
        )


def _make_file(make: MakeBlock, number: int, path: Path) -> None:
    content = io.BytesIO()
    np.savez(content, **make(number))
    write_atomically(path, content.getvalue())


def _cpu_seconds() -> float:
    """Of the worker processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
