"""Run a fairseq command with its output in a log file; if it fails, say why in one line."""

import contextlib
import errno
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from pipeline.child_process import started_by_us
from pipeline.errors import UserError
from pipeline.files import ROOT

SECONDS_BETWEEN_LOOKS = 0.1
LONGEST_CAUSE = 500  # an unknown --arch makes argparse list three hundred
ERROR_LINE = re.compile(r"^(?:fairseq-\w+: )?error: (.*)")
_running: set[subprocess.Popen[bytes]] = set()


def run_fairseq(
    command: str,
    arguments: Sequence[str],
    log: Path,
    on_line: Callable[[str], None] = lambda line: None,
    environment: Mapping[str, str] | None = None,
    held: Sequence[int] = (),
) -> None:
    """Run `fairseq-<command>`, append its output to `log`, and hand each line to `on_line`.

    The command writes the log itself, so that no line is lost if this process is killed; it then ends,
    too. It inherits the descriptors `held`.

    Raises UserError with what the command printed as the cause, if it fails.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    ours = {"PYTHONPATH": os.pathsep.join(path), "PYTHONSAFEPATH": "1", **started_by_us()}
    cause = None
    with log.open("ab") as output, log.open("rb") as written:
        written.seek(0, os.SEEK_END)
        process = subprocess.Popen(
            [sys.executable, "-m", "pipeline.training.child", command, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **ours, **(environment or {})},
            pass_fds=held,
        )
        _running.add(process)
        try:
            for line in follow(written, process):
                on_line(line)
                if match := ERROR_LINE.match(line):
                    cause = textwrap.shorten(match[1], LONGEST_CAUSE)
        except BaseException:
            process.terminate()
            process.wait()
            raise
        finally:
            _running.discard(process)
    code = process.returncode
    if code == 130:
        raise KeyboardInterrupt
    if code == errno.ENOSPC:  # not even the reason could be written
        raise UserError(f"the disk is full while writing {log}; free some space")
    if code:
        cause = cause or f"fairseq-{command} ended with exit code {code}"
        raise UserError(f"{cause} (log: {log})")


def end_all() -> None:
    """End the commands that other threads wait for; `run_fairseq` then raises UserError there."""
    for process in tuple(_running):
        process.terminate()


def follow(file: BinaryIO, process: subprocess.Popen[bytes]) -> Iterator[str]:
    """The lines that `process` writes to `file`, until it has ended."""
    rest = b""
    ended = False
    while not ended:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(SECONDS_BETWEEN_LOOKS)
            ended = True
        *lines, rest = (rest + file.read()).split(b"\n")
        for line in lines:
            yield line.decode(errors="replace") + "\n"
    if rest:
        yield rest.decode(errors="replace")
