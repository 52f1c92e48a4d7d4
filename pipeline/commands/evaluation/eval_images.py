"""Bits per dimension of a model of images byte by byte, or accuracy of a Vision Transformer.

Every byte counts but those that the training gave (--given-pixels). The result is printed and written as
JSON.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from pipeline.console import Parser, count


def parse(words: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = Parser("scripts/eval_images.sh", __doc__)
    parser.add_argument(
        "checkpoint",
        type=Path,
        metavar="CHECKPOINT",
        help="of scripts/train_images.sh or train_vit.sh; checkpoint_best.pt is the best on valid",
    )
    parser.add_argument(
        "data",
        type=Path,
        nargs="?",
        metavar="DATA",
        help="made by data-prep/images.sh (default: the training's)",
    )
    parser.add_argument("--split", default="test", help="train, valid or test (default: test)")
    parser.add_argument(
        "--batch-size", type=count, metavar="N", help="images at once (default: as in training)"
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="where the result goes (default: <checkpoint>.<split>.json)"
    )
    return parser.parse_args(words)
