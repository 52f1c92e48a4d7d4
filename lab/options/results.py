"""The options of the command that keeps the documents up to date with the committed results."""

from argparse import Namespace
from collections.abc import Sequence

from lab.console import Parser

RESULTS = """\
Bring the documents up to date with the committed results: pages of studies and of analyses, the index.

The page of a study is results/STUDY/README.md, that of all analyses results/analysis/README.md. Other tables
live between two comments in results/README.md, README.md or docs/; what is between them is replaced, the
prose around them is left alone. A benchmark writes its own tables beside its JSON file.
"""


def results(words: Sequence[str]) -> Namespace:
    """The options of `results`."""
    parser = Parser("scripts/lab.sh results", RESULTS)
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail if something is out of date"
    )
    return parser.parse_args(words)
