"""Run cells side by side, each in a process with its own GPU or its share of the cores."""

import errno
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from signal import Signals

from conventions import STOPPED
from lab import children
from lab.console import number_of
from lab.errors import UserError
from lab.files import shown_path
from lab.provenance import usable_cores
from lab.run.log import SECONDS_BETWEEN_LOOKS, LogTail
from lab.run.progress import Progress
from lab.study.cells import Cell, Plan
from lab.study.declaration import read_study
from lab.study.schema import STUDIES

SETTINGS_ARE_WRONG = 2
"""Exit code of a worker for a mistake in the settings, which the other cells share."""


def cell_of(study: str, out: str, asked: str) -> Cell:
    """The cell that the command line names."""
    given = json.loads(asked)
    plan = Plan(
        read_study(Path(study)),
        Path(out),
        Path(given["data"]) if given["data"] else None,
        tuple(given["flags"]),
        Path(given["start"]) if given["start"] else None,
    )
    choices = tuple(axis.choose([given["cell"][name]])[0] for name, axis in plan.study.axes.items())
    return Cell(plan, choices, given["seed"], given["tuning"], given["chosen"])


def request_of(cell: Cell) -> list[str]:
    """The command line that names `cell`."""
    asked = {
        "cell": cell.values,
        "seed": cell.seed,
        "tuning": cell.tuning,
        "chosen": cell.chosen,
        "data": cell.plan.data,
        "flags": cell.plan.flags,
        "start": cell.plan.start,
    }
    return [str(cell.study.path), str(cell.plan.out), json.dumps(asked, default=str)]


def command_of(cell: Cell) -> list[str]:
    """The command that runs this cell, as typed in a shell."""
    ours = cell.study.path.parent == STUDIES
    words = ["scripts/study.sh", cell.study.name if ours else str(cell.study.path)]
    for axis, value in cell.values.items():
        words += [f"--{axis}", value]
    words += ["--seeds", str(cell.seed - cell.first_seed + 1)]
    for option, path in (("--start", cell.plan.start), ("--data", cell.plan.data)):
        words += [option, shown_path(path)] if path else []
    return [*words, *(["--", *cell.plan.flags] if cell.plan.flags else [])]


def gpus() -> list[str]:
    """The names of the GPUs for CUDA_VISIBLE_DEVICES, found without torch, whose import takes seconds."""
    if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return list(takewhile(lambda name: name not in ("", "-1", "NoDevFiles"), visible.split(",")))
    if not shutil.which("nvidia-smi"):
        return []
    done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True)
    count = sum(line.startswith("GPU ") for line in done.stdout.splitlines())
    return [str(number) for number in range(count)]


def parallel_jobs(asked: int | None) -> int:
    """How many cells run side by side: `asked`, or one per GPU, or one; UserError for more than the GPUs."""
    count = len(gpus())
    if count and (asked or 0) > count:
        raise UserError(
            f"--jobs is {asked}, but the command can use {number_of(count, 'GPUs')}; leave --jobs out, or "
            "set CUDA_VISIBLE_DEVICES= to train on the CPU"
        )
    return asked or max(1, count)


def placement(place: int, jobs: int) -> dict[str, str]:
    """The environment of the cell at `place` of `jobs`."""
    if names := gpus():
        return {"CUDA_VISIBLE_DEVICES": names[place]}
    return {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(max(1, usable_cores() // jobs)))}


@dataclass
class RunningCell:
    """A running cell: its process, its `place`, and its progress."""

    cell: Cell
    place: int
    process: subprocess.Popen[bytes]
    messages: Path
    stack: ExitStack
    follower: "Follower | None" = None

    def reason(self) -> str:
        """Why the process has failed, once it has ended: its last error, perhaps not its last line."""
        lines = self.messages.read_text(encoding="utf-8", errors="replace").splitlines()
        self.stack.close()
        said = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
        if said:
            return said[-1]
        code = self.process.returncode
        if code == errno.ENOSPC:  # not even that could be written
            return "the disk is full; free some space"
        ended = f"was ended by {Signals(-code).name}" if code < 0 else f"ended with code {code}"
        return f"its process {ended}"


class Follower:
    """Shows the training progress of a cell, from its log; `name` leads each line."""

    def __init__(self, cell: Cell, name: str = "") -> None:
        self.log = cell.run.log
        resumes = cell.run.is_begun  # else the log starts over
        self.start = self.log.stat().st_size if resumes and self.log.is_file() else 0
        self.old = None if resumes or not self.log.is_file() else self.log.stat().st_ino
        self.tail: LogTail | None = None
        self.total, self.name = cell.updates() or None, name
        self.progress = Progress(self.total, sys.stdout, name=self.name)

    def join(self) -> None:
        """Show the cell's progress from here on; earlier lines of its log are skipped."""
        doing = self.progress.doing
        self.progress = Progress(self.total, sys.stdout, name=self.name)
        if self.tail is None and (tail := self.opened()):
            tail.skip()
            doing = "training"
        self.progress.doing = doing

    def opened(self) -> LogTail | None:
        """The log, None until it is there."""
        if self.tail is None and self.log.is_file() and self.log.stat().st_ino != self.old:
            self.tail = LogTail(self.log, self.start)
        return self.tail

    def look(self) -> None:
        """Show the lines written since the last call."""
        self.progress.wait()
        for line in tail.lines() if (tail := self.opened()) else ():
            self.progress.feed(line)

    def close(self) -> None:
        """Read no more."""
        if self.tail is not None:
            self.tail.close()


def start(cell: Cell, place: int, jobs: int, held: Sequence[int]) -> RunningCell:
    """Start the process of a cell; it ends with this one, and inherits the descriptors `held`."""
    stack = ExitStack()
    messages = stack.enter_context(tempfile.NamedTemporaryFile())  # noqa: SIM115
    environment = placement(place, jobs)
    process = stack.enter_context(
        children.started("lab.study.worker", request_of(cell), messages, environment, held)
    )
    follower = Follower(cell, ", ".join(cell.values.values()) if jobs > 1 else "")
    stack.callback(follower.close)
    return RunningCell(cell, place, process, Path(messages.name), stack, follower)


def run_cells(
    cells: Sequence[Cell], jobs: int, held: Sequence[int], describe: Callable[[Cell], str]
) -> list[str]:
    """Run the cells, `jobs` at a time; returns a line for each that has failed.

    A mistake in the settings, which the others share, ends the command. Raises UserError for it, and
    SystemExit if the command was asked to stop.
    """
    waiting, places, failures = list(cells), list(range(jobs)), []
    running: list[RunningCell] = []
    try:
        while waiting or running:
            while waiting and places:
                children.end_if_asked()
                cell = waiting.pop(0)
                number = len(cells) - len(waiting)
                print(f"[{number}/{len(cells)}] {cell.name}: log {shown_path(cell.run.log)}", flush=True)
                running.append(start(cell, places.pop(0), jobs, held))
            ended = wait_for_one(running)
            running.remove(ended)
            places.append(ended.place)
            if line := settle(ended, describe):
                failures.append(line)
    finally:
        children.end(one.process for one in running)
        for one in running:
            one.stack.close()
    return failures


def wait_for_one(running: Sequence[RunningCell]) -> RunningCell:
    """Wait for the first cell to end; meanwhile show the one that has run longest."""
    follower = running[0].follower
    follower.join()
    try:
        while True:
            for one in running:
                if one.process.poll() is not None:
                    return one
            follower.look()
            time.sleep(SECONDS_BETWEEN_LOOKS)
    finally:
        follower.look()
        follower.progress.close()


def settle(ended: RunningCell, describe: Callable[[Cell], str]) -> str | None:
    """Print how a cell has ended; returns its line if it has failed."""
    code, reason = ended.process.returncode, ended.reason()
    if children.was_stopped(code):
        print("stopped as asked; the same command resumes", flush=True)
        sys.exit(STOPPED)
    if children.was_interrupted(code):
        raise KeyboardInterrupt
    if code == 0:
        print(f"{ended.cell.name}: {describe(ended.cell)}", flush=True)
        return None
    log = ended.cell.run.log
    if code == SETTINGS_ARE_WRONG:
        raise UserError(reason)
    line = f"{ended.cell.name}: {reason}" + (f" (log: {shown_path(log)})" if log.is_file() else "")
    print(f"failed: {line}", flush=True)
    return line
