"""The options of the command that keeps the documents up to date with the committed results."""

from argparse import Namespace
from collections.abc import Sequence

from lab.console import Parser

RESULTS = """\
Bring the documents up to date with the committed results: pages of studies and of analyses, the index.

A study has its page in results/STUDY/README.md, the analyses have theirs in results/analysis/. Other tables
live between two comments in results/README.md, README.md or docs/; the command replaces what stands between
them and leaves the prose around them alone. A benchmark writes its own tables beside its JSON file.
"""


def results(words: Sequence[str]) -> Namespace:
    """The options of `results`."""
    parser = Parser("scripts/lab.sh results", RESULTS)
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail if something is out of date"
    )
    return parser.parse_args(words)
