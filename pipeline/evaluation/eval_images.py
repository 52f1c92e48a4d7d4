"""Bits per dimension of a model of images byte by byte, or accuracy of a Vision Transformer.

Every byte counts but those that the training gave (--given-pixels). The result is printed and written as
JSON.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.console import Parser, add_splits, count, number_of
from pipeline.evaluation.result_files import result_files
from pipeline.files import shown_path, write_json
from pipeline.outputs import json_with

RESULT = json_with("checkpoint", "architecture", "corpus", "original_files", "split")


def parse(words: Sequence[str]) -> argparse.Namespace:
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
    parser.add_argument(
        "--batch-size", type=count, metavar="N", help="images at once (default: as in training)"
    )
    add_splits(parser)
    return parser.parse_args(words)


def in_words(result: dict[str, Any]) -> str:
    """What was found: bits per dimension, or accuracy."""
    if "bits_per_dimension" in result:
        return f"{result['bits_per_dimension']:.4f} bits per dimension on {result['images']:,} images"
    return f"{result['accuracy']:.2f} % of {result['examples']:,} images right"


def main() -> None:
    """Evaluate each split."""
    options = parse(sys.argv[1:])
    import torch

    from pipeline.evaluation.image_likelihood import evaluate
    from pipeline.training.image_run import CLASSIFICATION, PIXELS, read_image_checkpoint
    from pipeline.training.save_dir import whole_checkpoint
    from user_dir.tasks.image_data import open_image_data

    path = whole_checkpoint(options.checkpoint.absolute())
    files = result_files(options, path, RESULT)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    checkpoint = read_image_checkpoint(path, options.data, device, (PIXELS, CLASSIFICATION))
    images = open_image_data(Path(checkpoint.task.cfg.data))
    for split in options.splits:
        images.images(split)
    for split, out in files.items():
        result = evaluate(checkpoint, split, options.batch_size, device)
        write_json(out, result)
        unverified = " (NOT the original files)" if result["original_files"] is False else ""
        print(
            f"{result['corpus']}{unverified}, {result['attention']}, seed {result['seed']}, "
            f"{number_of(result['updates'], 'updates')}: {in_words(result)} ({split})\n"
            f"  written to  {shown_path(out)}",
            flush=True,
        )
