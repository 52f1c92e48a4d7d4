"""Bring the documents up to date with the committed results: pages of studies, the index, other tables.

The page of a study is results/STUDY/README.md. Other tables live between two comments in results/README.md,
README.md or docs/; what is between them is replaced, the prose around them is left alone. A benchmark writes
its own tables beside its JSON file.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from pipeline.console import Parser
from pipeline.errors import UserError
from pipeline.files import RESULTS, shown_path


def parse(words: Sequence[str]) -> argparse.Namespace:
    parser = Parser("scripts/make_results.sh", __doc__)
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail if something is out of date"
    )
    return parser.parse_args(words)


def known_sections() -> None:
    """Let the documents have the index of all studies."""
    from pipeline.reports import documents
    from pipeline.study.index import index_section

    documents.SECTIONS["index"] = index_section


def stale() -> list[Path]:
    """The files that the committed results have left behind."""
    from pipeline.reports import documents
    from pipeline.study.declaration import find_study, read_study, study_names
    from pipeline.study.page import stale_files

    pages = [
        path for name in study_names() for path in stale_files(read_study(find_study(name)), RESULTS / name)
    ]
    return [*documents.stale(), *pages]


def write_all() -> None:
    """Write what is out of date."""
    from pipeline.reports import documents
    from pipeline.study.declaration import find_study, read_study, study_names
    from pipeline.study.page import publish

    for name in study_names():
        publish(read_study(find_study(name)), RESULTS / name)
    documents.write_all()  # the index links to the pages that are there


def main() -> None:
    """Write what is out of date, or name it."""
    check = parse(sys.argv[1:]).check
    known_sections()
    if not check:
        write_all()
    elif old := stale():
        names = ", ".join(shown_path(path) for path in old)
        raise UserError(f"{names} out of date; run scripts/make_results.sh and commit what it writes")
    print("Tables and plots are up to date with the measured results.")
