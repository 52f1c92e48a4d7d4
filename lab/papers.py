"""The papers' figures: results/paper/ holds a CSV for each of their tables."""

import csv
from fnmatch import fnmatchcase
from pathlib import Path

from lab.files import RESULTS

PAPER = RESULTS / "paper"
STATEMENTS = RESULTS / "analysis" / "statements.csv"


def read_table(name: str) -> list[dict[str, str]]:
    """The table `name` (a file's name without its ending), a row each, the header as keys."""
    return _rows(PAPER / f"{name}.csv")


def statements() -> list[dict[str, str]]:
    """The papers' statements about the figures of the analysis, in our words, with the ranges they name.

    A `statement` has {low} and {high} in their places. `asks` is the question that the picture answers; a
    figure without a question has no picture.
    """
    return _rows(STATEMENTS)


def statement(figure: str) -> dict[str, str]:
    """The statement about a figure, such as "theory/kernels": the first row that fits."""
    return next(row for row in statements() if fnmatchcase(figure, row["figure"]))


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
