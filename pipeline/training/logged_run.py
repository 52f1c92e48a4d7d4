"""Run a fairseq command in one or more processes, its output in a log; if it fails, say why in one line."""

import contextlib
import errno
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from conventions import STOPPED
from pipeline import signals
from pipeline.child_process import started_by_us
from pipeline.errors import PEER_ENDED, UserError
from pipeline.files import ROOT

SECONDS_BETWEEN_LOOKS = 0.1
SECONDS_TO_END = 10  # after one of several processes has failed; the others may have something to say, too
SECONDS_TO_SAVE = 60  # after an interruption
LONGEST_CAUSE = 500  # an unknown --arch makes argparse list three hundred
ERROR_LINE = re.compile(r"^(?:fairseq-\w+: )?error: (.*)")


def run_fairseq(
    command: str,
    arguments: Sequence[str],
    log: Path,
    on_line: Callable[[str], None] = lambda line: None,
    environment: Mapping[str, str] | None = None,
    held: Sequence[int] = (),
    ranks: Sequence[Sequence[str]] = ((),),
    on_wait: Callable[[], None] = lambda: None,
) -> None:
    """Run `fairseq-<command>`, append its output to `log`, hand each line to `on_line`.

    `on_wait` is called between looks at the log.

    There is one process for each of `ranks`, which are what its arguments end in. The processes write the
    log themselves, so that no line is lost if this process is killed; they then end, too. They inherit the
    descriptors `held`.

    Raises UserError with what the command printed as the cause, if it fails, and SystemExit if it was asked
    to stop (`pipeline/signals.py`).
    """
    signals.end_if_asked()
    log.parent.mkdir(parents=True, exist_ok=True)
    path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    ours = {"PYTHONPATH": os.pathsep.join(path), "PYTHONSAFEPATH": "1", **started_by_us()}
    cause = None
    with log.open("ab") as output, log.open("rb") as written, contextlib.ExitStack() as stack:
        written.seek(0, os.SEEK_END)
        group = Group()
        stack.callback(group.end)
        for rank in ranks:
            process = subprocess.Popen(
                [sys.executable, "-m", "pipeline.training.child", command, *arguments, *rank],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **ours, **(environment or {})},
                pass_fds=held,
            )
            group.processes.append(process)
            stack.enter_context(signals.told(process))
        for line in follow(written, group, on_wait):
            on_line(line)
            if (match := ERROR_LINE.match(line)) and cause in (None, PEER_ENDED):
                cause = textwrap.shorten(match[1], LONGEST_CAUSE)
    check_end(command, group.codes, cause, log)


class Group:
    """The processes of a run: when one has failed, the others are ended."""

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen[bytes]] = []
        self.codes: list[int] = []  # in the order in which they ended, less those that were killed here
        self.patience: float | None = None  # until when the others may run

    def wait(self, seconds: float) -> bool:
        """Wait for up to `seconds`; whether all have ended."""
        running = [process for process in self.processes if process.returncode is None]
        for process in running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(seconds / len(running))
                self.codes.append(process.returncode)
        still = [process for process in running if process.returncode is None]
        if still and any(code and not signals.was_stopped(code) for code in self.codes):
            now = time.monotonic()
            self.patience = self.patience or now + SECONDS_TO_END
            if now > self.patience:
                kill(still)
                return True
        return not still

    def end(self) -> None:
        """Have those that still run end; they may save their state first."""
        running = [process for process in self.processes if process.returncode is None]
        if running:
            print("ending the run, which may save its state first ...", flush=True)
        for process in running:
            process.terminate()
        end = time.monotonic() + SECONDS_TO_SAVE
        for process in running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, end - time.monotonic()))
        kill(process for process in running if process.returncode is None)


def kill(processes: Iterable[subprocess.Popen[bytes]]) -> None:
    """End processes at once."""
    for process in processes:
        process.kill()
        process.wait()


def check_end(command: str, codes: Sequence[int], cause: str | None, log: Path) -> None:
    """UserError, SystemExit or KeyboardInterrupt if processes that ended with `codes` have not succeeded."""
    failed = [code for code in codes if code and not signals.was_stopped(code)]
    if not failed and any(codes):
        saved = STOPPED in codes
        what = "the same command resumes" if saved else "nothing new was saved; run the same command again"
        print(f"stopped as asked; {what}", flush=True)
        sys.exit(STOPPED)
    if any(map(signals.was_interrupted, failed)):
        raise KeyboardInterrupt
    if errno.ENOSPC in failed:  # not even the reason could be written
        raise UserError(f"the disk is full while writing {log}; free some space")
    if not failed:
        return
    if cause in (None, PEER_ENDED) and min(failed) < 0:
        cause = f"fairseq-{command} was ended by {signal.Signals(-min(failed)).name}"
    raise UserError(f"{cause or f'fairseq-{command} ended with exit code {failed[0]}'} (log: {log})")


def follow(file: BinaryIO, group: Group, on_wait: Callable[[], None] = lambda: None) -> Iterator[str]:
    """The lines that the processes write to `file`, until they have ended."""
    rest = b""
    ended = False
    while not ended:
        ended = group.wait(SECONDS_BETWEEN_LOOKS)
        *lines, rest = (rest + file.read()).split(b"\n")
        for line in lines:
            yield line.decode(errors="replace") + "\n"
        on_wait()
    if rest:
        yield rest.decode(errors="replace")
