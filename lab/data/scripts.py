"""The scripts of data-prep/, run by a command that finds its data missing."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from lab.children import PARENT
from lab.errors import UserError
from lab.files import ROOT, shown_path
from lab.provenance import portable_command

SOURCE = "{source}"


def with_source(script: str, words: Sequence[str], source: Path | None, missing: Path) -> list[str]:
    """The arguments of a script with the user's `source`: after --from, or where they say SOURCE."""
    origin = [str(source.absolute())] if source else []
    if SOURCE not in words:
        return [*words, *(["--from", *origin] if origin else [])]
    if not origin:
        raise UserError(
            f"no data folder {shown_path(missing)}; name the raw data with --source, from which "
            f"data-prep/{script} prepares them"
        )
    return [origin[0] if word == SOURCE else word for word in words]


def run_script(script: str, *arguments: str | Path) -> None:
    """Run a script of data-prep/, which ends with this process; UserError, in its own words, if it fails."""
    command = [str(word) for word in (ROOT / "data-prep" / script, *arguments)]
    ours = {**os.environ, PARENT: str(os.getpid())}
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, errors="replace", cwd=ROOT, env=ours)
    *others, last = done.stderr.splitlines(keepends=True) or [""]
    if done.returncode == 0 or not last.startswith("error: "):
        sys.stderr.write(done.stderr)
    if done.returncode == 0:
        return
    if not last.startswith("error: "):
        raise UserError("the data could not be prepared (see the reason above)")
    sys.stderr.writelines(others)
    wrong, semicolon, advice = last.removeprefix("error: ").strip().partition("; ")
    if "--" in advice:  # an option of the script's, which the command that runs it may lack
        advice = f"prepare the data with {portable_command(command)}, see its --help"
    raise UserError(f"{wrong}{semicolon}{advice}")
