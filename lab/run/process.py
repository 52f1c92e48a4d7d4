"""fairseq: imported in two thirds of the CPU time, and its commands run in processes that write a log.

    python -m lab.run.process {train,interactive} ARGUMENTS...

runs such a process. The arguments are those of `fairseq-train` and the like; all output goes to stdout. If
the command fails, the last line is one sentence for the user, `error: ...`.
"""

import contextlib
import errno
import gc
import importlib
import json
import logging
import re
import resource
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from conventions import INTERRUPTED, STOPPED
from conventions.files import open_to_append
from lab import children
from lab.errors import PEER_ENDED, UserError
from lab.run.log import SECONDS_BETWEEN_LOOKS, LogTail

ONLY_FOR_SCORES = ("sklearn", "sklearn.metrics", "scipy.stats")
"""Libraries whose functions fairseq imports to score predictions."""
SECONDS_TO_END = 10  # after one of several processes has failed; the others may report something, too
LONGEST_CAUSE = 500  # an unknown --arch makes argparse list three hundred
ERROR_LINE = re.compile(r"^(?:fairseq-\w+: )?error: (.*)")

logger = logging.getLogger("usage")


def import_quickly(module: str) -> ModuleType:
    """Import a module that needs fairseq.

    Libraries for scoring are loaded when they are called. Garbage collection, which would take a seventh of
    the time and free nothing, is off.
    """
    absent = [name for name in ONLY_FOR_SCORES if name not in sys.modules]
    collects = gc.isenabled()
    gc.disable()
    for name in absent:
        sys.modules[name] = _Deferred(name)
    try:
        return importlib.import_module(module)
    finally:
        for name in absent:
            del sys.modules[name]
        if collects:
            gc.enable()


class _Deferred(ModuleType):
    """A library in whose place `from ... import ...` gets functions that import it when they are called."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return sys.modules.get(f"{self.__name__}.{name}") or _deferred(self.__name__, name)


def _deferred(module: str, name: str) -> Callable[..., Any]:
    def call(*arguments: Any, **options: Any) -> Any:
        return getattr(importlib.import_module(module), name)(*arguments, **options)

    return call


@dataclass(frozen=True)
class Processes:
    """The processes of a command of fairseq: one for each of `ranks`, its last arguments.

    They get the variables of `environment` besides ours and inherit the descriptors `held`.
    """

    ranks: Sequence[Sequence[str]] = ((),)
    environment: Mapping[str, str] = field(default_factory=dict)
    held: Sequence[int] = ()


ONE_PROCESS = Processes()


def run_fairseq(
    command: str,
    arguments: Sequence[str],
    log: Path,
    on_line: Callable[[str], None] = lambda line: None,
    on_wait: Callable[[], None] = lambda: None,
    processes: Processes = ONE_PROCESS,
) -> None:
    """Run `fairseq-<command>`, append its output to `log`, hand each line to `on_line`.

    `on_wait` is called between looks at the log. The processes write the log themselves, so that no line is
    lost if this process is killed; they then end, too.

    Raises UserError with the cause that the command printed, if it fails, and SystemExit if it was asked to
    stop (`lab/children.py`).
    """
    children.end_if_asked()
    log.parent.mkdir(parents=True, exist_ok=True)
    module, cause = "lab.run.process", None
    with (
        open_to_append(log) as output,
        contextlib.closing(LogTail(log, log.stat().st_size)) as written,
        contextlib.ExitStack() as stack,
    ):
        group = Group()
        stack.callback(group.end)
        for rank in processes.ranks:
            words = [command, *arguments, *rank]
            started = children.started(module, words, output, processes.environment, processes.held)
            group.processes.append(stack.enter_context(started))
        for line in follow(written, group, on_wait):
            on_line(line)
            if (match := ERROR_LINE.match(line)) and cause in (None, PEER_ENDED):
                cause = textwrap.shorten(match[1], LONGEST_CAUSE)
    check_end(command, group.codes, cause, log)


class Group:
    """The processes of a run; when one fails, the others are ended."""

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen[bytes]] = []
        self.codes: list[int] = []  # in the order in which they ended, less those that were killed here
        self.patience: float | None = None  # until when the others may run

    def running(self) -> list[subprocess.Popen[bytes]]:
        """The processes that have not been reaped."""
        return [process for process in self.processes if process.returncode is None]

    def wait(self, seconds: float) -> bool:
        """Wait for up to `seconds`; True if all have ended."""
        running = self.running()
        for process in running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(seconds / len(running))
                self.codes.append(process.returncode)
        still = self.running()
        if still and any(code and not children.was_stopped(code) for code in self.codes):
            now = time.monotonic()
            self.patience = self.patience or now + SECONDS_TO_END
            if now > self.patience:
                children.kill(still)
                return True
        return not still

    def end(self) -> None:
        """End the running processes; they may save their state first."""
        if running := self.running():
            print("ending the run, which may save its state first ...", flush=True)
            children.end(running)


def check_end(command: str, codes: Sequence[int], cause: str | None, log: Path) -> None:
    """UserError, SystemExit or KeyboardInterrupt if processes that ended with `codes` have not succeeded."""
    failed = [code for code in codes if code and not children.was_stopped(code)]
    if not failed and any(codes):
        saved = STOPPED in codes
        what = "the same command resumes" if saved else "nothing new was saved; run the same command again"
        print(f"stopped as asked; {what}", flush=True)
        sys.exit(STOPPED)
    if any(map(children.was_interrupted, failed)):
        raise KeyboardInterrupt
    if errno.ENOSPC in failed:  # not even the reason could be written
        raise UserError(f"the disk is full while writing {log}; free some space")
    if not failed:
        return
    if cause in (None, PEER_ENDED) and min(failed) < 0:
        cause = f"fairseq-{command} was ended by {signal.Signals(-min(failed)).name}"
    raise UserError(f"{cause or f'fairseq-{command} ended with exit code {failed[0]}'} (log: {log})")


def follow(written: LogTail, group: Group, on_wait: Callable[[], None]) -> Iterator[str]:
    """The lines that the processes write, until they have ended."""
    ended = False
    while not ended:
        ended = group.wait(SECONDS_BETWEEN_LOOKS)
        yield from written.lines()
        on_wait()
    yield from written.last()


@contextlib.contextmanager
def resets_noted() -> Iterator[list[int]]:
    """The peaks of the GPU's memory before each reset of their count: fairseq makes one after each update."""
    import torch

    reset, peaks = torch.cuda.reset_peak_memory_stats, [0]

    def note_and_reset(*device: Any) -> None:
        peaks[:] = [max(*peaks, torch.cuda.max_memory_allocated(*device))]
        reset(*device)

    torch.cuda.reset_peak_memory_stats = note_and_reset
    try:
        yield peaks
    finally:
        torch.cuda.reset_peak_memory_stats = reset


def peak_memory(earlier: Sequence[int] = ()) -> int:
    """The most memory held so far in bytes: of the GPU if one is in use, else of this process.

    `earlier`: of `resets_noted`.
    """
    import torch

    if torch.cuda.is_initialized():
        return max(*earlier, torch.cuda.max_memory_allocated())
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts in KiB


def log_like_fairseq() -> None:
    """Set up fairseq's own logging, which its imports have prevented."""
    logging.basicConfig(
        format="%(asctime)s | %(levelname)s | %(name)s | %(message)s",
        datefmt="%Y-%m-%d %H:%M:%S",
        level=logging.INFO,
        stream=sys.stdout,
        force=True,
    )


def run_here(command: str, arguments: Sequence[str]) -> None:
    """Run `fairseq-<command>` in this process; the last output is the peak of memory."""
    before, sys.argv = sys.argv, [f"fairseq-{command}", *arguments]
    log_like_fairseq()
    main = import_quickly(f"fairseq_cli.{command}").cli_main
    try:
        with resets_noted() as peaks:
            main()
    finally:
        sys.argv = before
    logger.info(json.dumps({"peak_memory": peak_memory(peaks)}))


def main() -> None:
    """Run the command that the arguments name, as this process."""
    children.end_with_parent()
    command, *arguments = sys.argv[1:]
    try:
        run_here(command, arguments)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except Exception as error:
        children.end_with(error)


if __name__ == "__main__":
    main()
