"""Runs of a sweep side by side: each on a GPU of its own, or with its share of the cores."""

import os
import queue
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Protocol, TypeVar

import torch

from pipeline import signals
from pipeline.errors import UserError
from pipeline.provenance import usable_cores


class Named(Protocol):
    """What a run must have."""

    @property
    def name(self) -> str:
        """What to call it in messages."""


Run = TypeVar("Run", bound=Named)


def parallel_jobs(asked: int | None) -> int:
    """How many runs to start side by side: `asked`, or one per GPU, or one.

    Raises UserError if there are fewer GPUs than that.
    """
    gpus = torch.cuda.device_count()
    jobs = asked or max(1, gpus)
    if gpus and jobs > gpus:
        raise UserError(f"--jobs is {jobs}; it must be no more than the GPUs there are, {gpus}")
    return jobs


def run_all(runs: Iterable[Run], jobs: int, work: Callable[[Run, int], str]) -> list[str]:
    """Do `work` for every run, `jobs` at a time; returns a line for each that raised UserError.

    `work` gets the run and its place, 0 to `jobs` - 1, which no other run has at the time; it returns what to
    print about the result.
    """
    places: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in range(jobs):
        places.put(number)

    def at_a_place(run: Run) -> str:
        place = places.get()
        try:
            return work(run, place)
        finally:
            places.put(place)

    failures = []
    with ThreadPoolExecutor(jobs) as pool:
        running = {pool.submit(at_a_place, run): run for run in runs}
        try:
            for future in as_completed(running):
                name = running[future].name
                try:
                    print(f"{name}: {future.result()}", flush=True)
                except UserError as error:
                    failures.append(f"{name}: {error}")
                    print(f"{name}: failed: {error}", flush=True)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            signals.end_all()  # else this would wait for runs that take hours
            raise
    return failures


def placement(place: int, jobs: int) -> dict[str, str]:
    """The environment of the run at `place` of `jobs`: its GPU, or its share of the cores."""
    if torch.cuda.is_available():
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        names = visible.split(",") if visible else [str(i) for i in range(torch.cuda.device_count())]
        return {"CUDA_VISIBLE_DEVICES": names[place]}
    return {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(max(1, usable_cores() // jobs)))}
