"""From nothing to a table: set-up, a small corpus, three language models trained and compared.

Makes .venv (PYTHON= and TORCH_SPEC= choose interpreter and torch), prepares the English text that comes
with Python, trains transnormer_t1, transnormer_t2 and fairseq's transformer_lm with equal budgets,
evaluates each, and lets the first one continue three prompts. At most ten minutes on two cores. After an
interruption the same command resumes; when everything is done it prints the table again.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from pipeline.console import Parser, count
from pipeline.files import ROOT


def parse(words: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = Parser("scripts/quickstart.sh", __doc__)
    parser.add_argument(
        "--updates",
        type=count,
        metavar="N",
        help="train each model for N updates instead of those of configs/quickstart/base.yaml",
    )
    parser.add_argument(
        "--out",
        "--runs",
        dest="runs",
        type=Path,
        metavar="DIR",
        help="where everything goes (default: runs/quickstart in the project, runs/quickstart-N with "
        "--updates N)",
    )
    parser.add_argument(
        "--fresh",
        action="store_true",
        help="start over; runs of this command that are there move to DIR/earlier-N, nothing is removed",
    )
    options = parser.parse_args(words)
    if options.runs is None:
        suffix = f"-{options.updates}" if options.updates else ""
        options.runs = ROOT / "runs" / f"quickstart{suffix}"
    options.runs = options.runs.absolute()
    return options
