"""Write one HTML page about runs (the command behind report.sh)."""

import sys
from collections.abc import Sequence
from pathlib import Path

from pipeline.commands.studies.report import parse
from pipeline.errors import UserError
from pipeline.files import ROOT, check_writable, shown_path, write_atomically
from pipeline.reports.html.page import Page, render
from pipeline.studies.report.results import find_results, result_sections
from pipeline.studies.report.runs import find_runs
from pipeline.studies.report.training import training_sections


def report(folders: Sequence[Path], beside: Path) -> Page:
    """The page about what lies below `folders`, to be written in the folder `beside`."""
    for folder in folders:
        if not folder.is_dir():
            raise UserError(f"there is no folder {folder}; name folders of runs")
    runs = find_runs(folders)
    results = find_results(folders)
    sections = [
        section
        for section in [*training_sections(runs, beside), *result_sections(results, beside)]
        if section.parts
    ]
    names = ", ".join(map(shown_path, folders))
    if not sections:
        raise UserError(f"{names} holds no run and no result; train a model first, or name other folders")
    finished = sum(run.finished for run in runs)
    summary = f"{len(runs)} training runs in {names}, {finished} of them finished."
    return Page("Report of training runs", summary, sections)


def main() -> None:
    """Entry point."""
    options = parse(sys.argv[1:])
    out = options.out.absolute()
    check_writable(out)
    folders = [folder.absolute() for folder in options.runs or [ROOT / "runs"]]
    page = report(folders, out.parent)
    write_atomically(out, render(page).encode())
    print(f"written to {shown_path(out)}")
