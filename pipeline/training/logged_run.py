"""Run a fairseq command with its output in a log file; if it fails, say why in one line."""

import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pipeline.errors import UserError
from pipeline.files import ROOT

LONGEST_CAUSE = 500  # an unknown --arch makes argparse list three hundred
ERROR_LINE = re.compile(r"^(?:fairseq-\w+: )?error: (.*)")


def run_fairseq(
    command: str,
    arguments: Sequence[str],
    log: Path,
    on_line: Callable[[str], None] = lambda line: None,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Run `fairseq-<command>`, append its output to `log`, and hand each line to `on_line`.

    Raises UserError with what the command printed as the cause, if it fails.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    ours = {"PYTHONPATH": os.pathsep.join(path), "PYTHONSAFEPATH": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "pipeline.training.child", command, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, **ours, **(environment or {})},
        text=True,
        errors="replace",
    )
    cause = None
    try:
        with log.open("a", encoding="utf-8") as file:
            for line in process.stdout:
                file.write(line)
                file.flush()
                on_line(line)
                if match := ERROR_LINE.match(line):
                    cause = textwrap.shorten(match[1], LONGEST_CAUSE)
        code = process.wait()
    except BaseException:
        process.terminate()
        process.wait()
        raise
    if code == 130:
        raise KeyboardInterrupt
    if code:
        cause = cause or f"fairseq-{command} ended with exit code {code}"
        raise UserError(f"{cause} (log: {log})")
