"""fairseq's commands as forks of a process that has imported them: what a test runs often costs less so."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pipeline.errors import UserError
from pipeline.training.logged_run import ERROR_LINE
from tests.helpers.forked import CONTEXT


def run_fairseq(
    command: str,
    arguments: Sequence[str],
    log: Path,
    on_line: Callable[[str], None] = lambda line: None,
    environment: Mapping[str, str] | None = None,
    held: Sequence[int] = (),
) -> None:
    """As `logged_run.run_fairseq`, but the lines are handed on when the command has ended."""
    log.parent.mkdir(parents=True, exist_ok=True)
    before = log.stat().st_size if log.exists() else 0
    words = [str(word) for word in arguments]
    process = CONTEXT.Process(target=_run, args=(command, words, log, dict(environment or {})))
    process.start()
    process.join()
    cause = f"fairseq-{command} ended with exit code {process.exitcode}"
    with log.open(encoding="utf-8") as file:
        file.seek(before)
        for line in file:
            on_line(line)
            if match := ERROR_LINE.match(line):
                cause = match[1]
    if process.exitcode:
        raise UserError(f"{cause} (log: {log})")


def _run(command: str, arguments: list[str], log: Path, environment: dict[str, str]) -> None:
    """In the child: everything printed goes to the log."""
    from pipeline.training import child as fairseq_run

    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.environ.update(environment)
    sys.argv = ["fairseq", command, *arguments]
    fairseq_run.main()
