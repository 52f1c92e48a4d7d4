"""Masked-LM perplexity of a pre-trained encoder.

15 % of the tokens are masked as in training, the same ones for every encoder. The result is printed and
written next to the checkpoint as <checkpoint>.<split>.json.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from pipeline.console import Parser, names


def parse(words: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = Parser("scripts/eval_mlm.sh", __doc__)
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="of scripts/pretrain_roberta.sh")
    parser.add_argument("data", type=Path, metavar="DATA", help="a folder written by data-prep/roberta.sh")
    parser.add_argument(
        "--split",
        dest="splits",
        type=names,
        default="test",
        metavar="SPLIT",
        help="train, valid or test, several with commas (default: test)",
    )
    return parser.parse_args(words)
