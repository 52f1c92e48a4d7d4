"""results/paper/ is the only home of the papers' figures."""

import re

import pytest

from lab.files import ROOT
from lab.papers import PAPER, read_table

TABLES = sorted(set(PAPER.glob("*.csv")) - {PAPER / "contents.csv"})
MADE = re.compile(r"<!-- table: .*?<!-- end -->", re.DOTALL)


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_table_parses(path):
    rows = read_table(path.stem)
    assert rows
    for row in rows:
        assert None not in row and None not in row.values()
        assert all(value.strip() for value in row.values())


def test_every_row_of_the_contents_has_the_columns_of_the_header():
    """A comma in a note without quotes would cut the note short."""
    assert all(None not in row and None not in row.values() for row in read_table("contents"))


def test_every_table_is_described():
    readme = (PAPER / "README.md").read_text(encoding="utf-8")
    assert len(TABLES) == 26
    assert {path.name for path in TABLES} == set(re.findall(r"^\| (\S+\.csv) ", readme, re.MULTILINE))


def test_copies_are_those_of_the_reference_data(shared_dir):
    own = ("linear_", "lln_01_glue_changes")  # of which there is none
    copies = [path for path in TABLES if not path.stem.startswith(own)]
    for path in copies:
        assert path.read_bytes() == (shared_dir / "paper" / path.name).read_bytes()


# Figures of the papers that other numbers happen to equal: ratios, goals and made-up figures of ours.
COINCIDENCES = {"1.05", "4.19", "4.48", "25.00"}
FOLDERS = (
    "benchmarks",
    "causal_linear_attention",
    "configs",
    "conventions",
    "data-prep",
    "docs",
    "lab",
    "scripts",
    "tests",
    "user_dir",
)
TEXT = {".py", ".sh", ".yaml", ".md"}


def distinctive_figures():
    """Results of three significant digits or more with two decimals, and whole numbers of five digits.

    Shorter ones (90.6, 12) equal too many other numbers. Table 13 holds settings, which configs/ must repeat.
    """
    for path in TABLES:
        if path.stem != "transnormer_13_config":
            for row in read_table(path.stem):
                yield from (v for v in row.values() if re.fullmatch(r"[1-9]\d*\.\d\d|[1-9]\d{4,}", v))


def test_no_figure_of_a_paper_is_typed_elsewhere():
    """Documents hold them only in tables made from the CSV; code, tests and configurations not at all."""
    figures = set(distinctive_figures()) - COINCIDENCES
    assert len(figures) > 250
    pattern = re.compile(r"(?<![\w.])(" + "|".join(map(re.escape, figures)) + r")(?!\d|\.\d)")
    files = [ROOT / "README.md", ROOT / "results" / "README.md", ROOT / "results" / "measured" / "README.md"]
    files += [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in TEXT]
    typed = [
        f"{path.relative_to(ROOT)}: {figure}"
        for path in files
        for figure in pattern.findall(MADE.sub("", path.read_text(encoding="utf-8")))
    ]
    assert not typed
