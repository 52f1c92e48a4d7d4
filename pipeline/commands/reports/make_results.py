"""Generate the tables and learning curves of the documents from results/measured/ and results/paper/.

A table lives between two comments in results/README.md, README.md or docs/operator.md; what is between them
is replaced, the prose around them is left alone. No figure in a table is typed by hand.
"""

import argparse
from collections.abc import Sequence

from pipeline.console import Parser


def parse(words: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = Parser("scripts/make_results.sh", __doc__)
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail if a table or plot is out of date"
    )
    return parser.parse_args(words)
