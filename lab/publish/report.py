"""Write one HTML page about runs: models, settings, curves, results, cost, environment.

The page is a single file that loads nothing from a network: tables sort by a click on a header, and light
or dark follows the browser. It covers whatever lies in the folders RUNS and below: logs of training runs,
also of unfinished ones, and what scripts/ and benchmarks/ have written there (perplexities, GLUE, Long Range
Arena, cost, figures of the analysis).
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from lab.console import Parser
from lab.errors import UserError
from lab.files import ROOT, shown_path, write_atomically
from lab.outputs import begins, check_output
from lab.publish.page import GENERATOR, Page, render
from lab.publish.report_results import find_results, result_sections
from lab.publish.report_runs import find_runs, training_sections


def parse(words: Sequence[str]) -> argparse.Namespace:
    parser = Parser("scripts/lab.sh report", __doc__)
    parser.add_argument(
        "runs",
        type=Path,
        nargs="*",
        metavar="RUNS",
        help="folders of runs, searched recursively (default: runs)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("report.html"),
        metavar="FILE",
        help="the page (default: %(default)s)",
    )
    return parser.parse_args(words)


def report(folders: Sequence[Path], beside: Path) -> Page:
    """The page about what lies below `folders`, to be written in the folder `beside`."""

    for folder in folders:
        if not folder.is_dir():
            found = f"{folder} is a file" if folder.exists() else f"there is no folder {folder}"
            raise UserError(f"RUNS: {found}; name folders of runs")
    runs = find_runs(folders)
    sections = [*training_sections(runs, beside), *result_sections(find_results(folders, beside))]
    sections = [section for section in sections if section.parts]
    names = ", ".join(map(shown_path, folders))
    if not sections:
        raise UserError(f"{names} holds no run and no result; train a model first, or name other folders")
    finished = sum(run.finished for run in runs)
    summary = f"{len(runs)} training runs in {names}, {finished} of them finished."
    return Page("Report of training runs", summary, sections)


def main(options: argparse.Namespace) -> None:
    """Write the page."""
    out = options.out.absolute()
    check_output(out, begins(f'<meta name="generator" content="{GENERATOR}">', within=500))
    folders = [folder.absolute() for folder in options.runs or [ROOT / "runs"]]
    page = report(folders, out.parent)
    write_atomically(out, render(page).encode())
    print(f"written to {shown_path(out)}")
