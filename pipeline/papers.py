"""The papers' figures: results/paper/ holds a CSV for each of their tables."""

import csv
from fnmatch import fnmatchcase

from pipeline.files import ROOT

PAPER = ROOT / "results" / "paper"


def read_table(name: str) -> list[dict[str, str]]:
    """The table `name` (a file's name without its ending), a row each, the header as keys."""
    with (PAPER / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def statement(figure: str) -> dict[str, str]:
    """What a paper says about a figure of the analysis, such as "theory/kernels": the first row that fits."""
    return next(row for row in read_table("analysis_statements") if fnmatchcase(figure, row["figure"]))
