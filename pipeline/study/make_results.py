"""Bring the documents up to date with the committed results: pages of studies and of analyses, the index.

The page of a study is results/STUDY/README.md, that of all analyses results/analysis/README.md. Other tables
live between two comments in results/README.md, README.md or docs/; what is between them is replaced, the
prose around them is left alone. A benchmark writes its own tables beside its JSON file.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from pipeline.console import Parser
from pipeline.errors import UserError
from pipeline.files import RESULTS, read_json, renewed, shown_path


def parse(words: Sequence[str]) -> argparse.Namespace:
    parser = Parser("scripts/make_results.sh", __doc__)
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail if something is out of date"
    )
    return parser.parse_args(words)


def renew(check: bool) -> list[Path]:
    """Write the files that the committed results have left behind, or only tell them."""
    from pipeline.reports import analysis, documents
    from pipeline.study.declaration import our_studies
    from pipeline.study.page import publish

    documents.SECTIONS["index"] = index_section
    text = analysis.document(RESULTS / "analysis")
    old = renewed({RESULTS / "analysis" / "README.md": text} if text else {}, check)
    for study in our_studies():
        old += publish(study, RESULTS / study.name, check)
    return old + renewed(documents.texts(), check)  # the index links to the pages that are there


def index_section() -> str:
    """The index of results/README.md: a row for each table and figure of the papers."""
    from pipeline.papers import read_table
    from pipeline.reports.tables import markdown_table

    rows = [
        [f"{item['paper']}, {item['item']}", item["what"], verdict_of(item), page_of(item)]
        for item in read_table("contents")
    ]
    return markdown_table(["paper", "what", "verdict", "page"], rows, figures=False)


def verdict_of(item: dict[str, str]) -> str:
    """The outcomes of its studies' claims about the item, or of a figure's statements, and the note."""
    studies = item["study"].split()
    found = []
    for name in studies:
        counts = outcomes(name, item)
        if counted := ", ".join(f"{count} {outcome}" for outcome, count in counts.items()):
            found.append(f"{name}: {counted}" if len(studies) > 1 else counted)
    return "; ".join(filter(None, [*found, item["note"]])) or "not run"


def outcomes(name: str, item: dict[str, str]) -> Counter[str]:
    """How often a study, or a figure, comes to each verdict about the item."""
    from pipeline.study.declaration import read_study, study_names
    from pipeline.study.page import groups_of, shown_records, verdicts
    from pipeline.verdicts import NOT_RUN

    found: list[str] = []
    figure = RESULTS / f"{name}.json"
    if figure.is_file():
        found = [one["verdict"] for one in read_json(figure)["checks"]]
    elif name in study_names():
        study = read_study(name)
        names = (item["item"], f"{item['paper']}, {item['item']}")
        for group in groups_of(study, shown_records(study, RESULTS / study.name)).values():
            found += [verdict.outcome for claim, verdict in verdicts(study, group) if claim.where in names]
    return Counter(outcome for outcome in found if outcome != NOT_RUN)


def page_of(item: dict[str, str]) -> str:
    """Links to where the figures are."""
    own = [f"{name}/README.md" for name in item["study"].split()]
    pages = [page for page in own if (RESULTS / page).is_file()] or [item["page"]]
    return ", ".join(
        f"[{page.partition('/README.md')[0].lstrip('#.') or 'page'}]({page})" for page in filter(None, pages)
    )


def main() -> None:
    """Write what is out of date, or name it."""
    check = parse(sys.argv[1:]).check
    names = ", ".join(map(shown_path, renew(check)))
    if names and check:
        raise UserError(f"{names} out of date; run scripts/make_results.sh and commit what it writes")
    if names:
        print(f"written: {names}")
    print("Tables and plots are up to date with the measured results.")
