"""Write one HTML page about runs: models, settings, curves, results, cost, environment.

The page is a single file that loads nothing from a network: tables sort by a click on a header, and light
or dark follows the browser. It covers whatever lies in the folders RUNS and below: logs of training runs,
also of unfinished ones, and what scripts/ and benchmarks/ have written there (perplexities, GLUE, Long Range
Arena, cost, figures of the analysis).
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from pipeline.console import Parser


def parse(words: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = Parser("scripts/report.sh", __doc__)
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
