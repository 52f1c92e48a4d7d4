"""results/paper/ is the only home of the papers' figures."""

import re

import pytest

from pipeline.files import ROOT
from pipeline.papers import PAPER, read_table

TABLES = sorted(PAPER.glob("*.csv"))
MADE = re.compile(r"<!-- table: .*?<!-- end -->", re.DOTALL)


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_table_parses(path):
    rows = read_table(path.stem)
    assert rows
    for row in rows:
        assert None not in row and None not in row.values()
        assert all(value.strip() for value in row.values())


def test_every_table_is_described():
    readme = (PAPER / "README.md").read_text(encoding="utf-8")
    assert len(TABLES) == 18
    assert {path.name for path in TABLES} == set(re.findall(r"^\| (\S+\.csv) ", readme, re.MULTILINE))


def test_copies_are_those_of_the_reference_data(shared_dir):
    for path in TABLES:
        assert path.read_bytes() == (shared_dir / "paper" / path.name).read_bytes()


def test_no_perplexity_of_the_paper_is_typed_elsewhere():
    """Documents hold them only in tables made from the CSV; scripts not at all."""
    rows = read_table("transnormer_04_wikitext103_lm")
    figures = {row[key] for row in rows for key in ("ppl_val", "ppl_test")}
    pattern = re.compile(r"(?<![\d.])(" + "|".join(map(re.escape, figures)) + r")(?!\d)")
    files = [ROOT / "README.md", ROOT / "results" / "README.md"]
    for folder in ("scripts", "benchmarks", "configs", "user_dir"):
        files += [p for p in (ROOT / folder).rglob("*") if p.suffix in (".py", ".sh", ".yaml", ".md")]
    for path in filter(lambda p: p.is_file(), files):
        text = MADE.sub("", path.read_text(encoding="utf-8"))
        assert not pattern.search(text), path
