"""Draw images from a model byte by byte, or complete the upper rows of test images.

Writes a PNG grid and the array beside it (.npy, uint8 of shape (images, height, width, channels)). With
--complete each row of the grid has what was given, what the model made of it, and the original. An image
depends on the seed and its number only, not on --batch-size.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from pipeline.console import Parser, count
from pipeline.errors import UserError


def parse(words: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = Parser("scripts/sample_images.sh", __doc__)
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="of scripts/train_images.sh")
    parser.add_argument(
        "data",
        type=Path,
        nargs="?",
        metavar="DATA",
        help="made by data-prep/images.sh, for --complete (default: the training's)",
    )
    parser.add_argument("--count", type=count, default=64, metavar="N", help="images (default: %(default)s)")
    parser.add_argument(
        "--complete",
        type=float,
        metavar="SHARE",
        help="give this share of the rows of test images, rounded, such as 0.5 for the upper half",
    )
    parser.add_argument("--seed", type=int, default=1, help="of the draws (default: %(default)s)")
    parser.add_argument(
        "--batch-size", type=count, default=64, metavar="N", help="images at once (default: %(default)s)"
    )
    parser.add_argument(
        "--recompute",
        action="store_true",
        help="run the whole prefix again for every byte instead of keeping a state, for comparison",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="the PNG (default: <checkpoint>.samples.png or .completed.png)",
    )
    options = parser.parse_args(words)
    if options.complete is not None and not 0 < options.complete < 1:
        raise UserError(f"--complete is {options.complete}; it must be a share of the rows between 0 and 1")
    if options.seed < 0:
        raise UserError(f"--seed is {options.seed}; it must be 0 or more")
    return options
