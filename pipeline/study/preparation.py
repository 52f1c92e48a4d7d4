"""The data of a study: there, or prepared by the script that its YAML names."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from pipeline.data.prepared import identify
from pipeline.errors import UserError
from pipeline.files import ROOT, shown_path
from pipeline.provenance import portable_command
from pipeline.study.cells import Cell
from pipeline.study.declaration import Study

SOURCE = "{source}"


def prepare_data(study: Study, cells: Sequence[Cell], source: Path | None) -> None:
    """Check the data of the cells; missing ones are prepared from `source`, or by download.

    The raw data are named by `--from`, or where the study writes {source}. Raises UserError for data that are
    missing and that the study does not know how to prepare.
    """
    folders = list(dict.fromkeys(folder for cell in cells if (folder := cell.data_folder())))
    missing = [folder for folder in folders if not folder.is_dir()]
    for name, (script, *words) in study.prepare.items():
        if cells[0].plan.data is None and (ROOT / name in missing or (missing and not name)):
            run_script(script, *with_source(script, words, source, ROOT / name if name else missing[0]))
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
    """Run a script of data-prep/; UserError, in the script's own words, if it fails."""
    command = [str(word) for word in (ROOT / "data-prep" / script, *arguments)]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, errors="replace", cwd=ROOT)
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
