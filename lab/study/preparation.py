"""The data of a study's cells: checked, and prepared by scripts of data-prep/ where they are missing."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from lab.children import PARENT
from lab.data.prepared import identify
from lab.errors import UserError
from lab.files import ROOT, shown_path
from lab.provenance import portable_command
from lab.study.cells import Cell

SOURCE = "{source}"
"""Stands for --source in the words of a `prepare`."""


def prepare_data(cells: Sequence[Cell], source: Path | None) -> None:
    """Check the data of the cells; missing ones are prepared from `source`, or by download.

    The raw data are named by `--from`, or where the study writes {source}; a script that finds its data
    prepared checks that they are of this source. Raises UserError for missing data that the study does not
    know how to prepare, and for a `source` that no script reads.
    """
    folders = list(dict.fromkeys(folder for cell in cells if (folder := cell.data_folder())))
    if not folders and (source or cells[0].plan.data):
        raise UserError(f"{cells[0].study.name} draws its own data; leave --data and --source out")
    wanted = folders if source else [folder for folder in folders if not folder.is_dir()]
    scripts = {} if cells[0].plan.data else cells[0].study.prepare
    scripts = {name: words for name, words in scripts.items() if (ROOT / name in wanted if name else wanted)}
    if source and not scripts:
        raise UserError(
            f"--source names raw data, but no script makes {shown_path(folders[0])} of them; leave it out"
        )
    for name, (script, *words) in scripts.items():
        run_script(script, *with_source(script, words, source, ROOT / name if name else wanted[0]))
    for folder in folders:
        if not folder.is_dir():
            raise UserError(
                f"no data folder {shown_path(folder)}; prepare it with a script of data-prep/, or name "
                "another with --data"
            )
        identify(folder)


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
    """Run a script of data-prep/ by this Python; UserError, in its own words, if it fails.

    It ends with this process.
    """
    words = [f"data-prep/{script}", *map(str, arguments)]
    command, ours = [sys.executable, "-m", "lab", *words], {**os.environ, PARENT: str(os.getpid())}
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
        advice = f"prepare the data with {portable_command(words)}, see its --help"
    raise UserError(f"{wrong}{semicolon}{advice}")
