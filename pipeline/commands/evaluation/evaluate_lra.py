"""Accuracy of a model of Long Range Arena.

Every example counts, also those of an incomplete batch. The result, with preset, attention, updates, seed
and the origin of the data, is printed and written as JSON.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from pipeline.console import Parser


def parse(words: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = Parser("scripts/evaluate_lra.sh", __doc__)
    parser.add_argument(
        "checkpoint",
        type=Path,
        metavar="CHECKPOINT",
        help="of scripts/train_lra.sh; checkpoint_best.pt is the best on valid",
    )
    parser.add_argument("data", type=Path, metavar="DATA", help="the folder made by data-prep/lra.sh")
    parser.add_argument("--split", default="test", help="train, valid or test (default: test)")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="where the result goes (default: <checkpoint>.<split>.json beside the checkpoint)",
    )
    return parser.parse_args(words)
