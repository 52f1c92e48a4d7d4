"""Accuracy of a model of Long Range Arena.

Every example counts, also those of an incomplete batch. The result, with preset, attention, updates, seed
and the origin of the data, is printed and written as JSON.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from pipeline.console import Parser, add_splits, number_of
from pipeline.evaluation.result_files import result_files
from pipeline.files import shown_path, write_json
from pipeline.outputs import json_with

RESULT = json_with("checkpoint", "task", "preset", "attention", "split", "accuracy")


def parse(words: Sequence[str]) -> argparse.Namespace:
    parser = Parser("scripts/evaluate_lra.sh", __doc__)
    parser.add_argument(
        "checkpoint",
        type=Path,
        metavar="CHECKPOINT",
        help="of scripts/train_lra.sh; checkpoint_best.pt is the best on valid",
    )
    parser.add_argument("data", type=Path, metavar="DATA", help="the folder made by data-prep/lra.sh")
    add_splits(parser)
    return parser.parse_args(words)


def main() -> None:
    """Evaluate each split."""
    options = parse(sys.argv[1:])
    from pipeline.evaluation.lra import evaluate
    from pipeline.training.lra_run import open_data, read_lra_checkpoint
    from pipeline.training.save_dir import whole_checkpoint

    path = whole_checkpoint(options.checkpoint.absolute())
    files = result_files(options, path, RESULT)
    data = open_data(options.data.absolute(), options.splits)
    checkpoint = read_lra_checkpoint(path)
    for split, out in files.items():
        result = evaluate(checkpoint, data, split)
        write_json(out, result)
        origin = (result["training_data"] or {}).get("origin", "unknown")
        print(
            f"{result['task']} ({origin} data), {result['preset']}, {result['attention']}, "
            f"seed {result['seed']}, {number_of(result['updates'], 'updates')}: "
            f"{result['accuracy']:.2f} % of {result['examples']:,} right ({split})\n"
            f"  written to  {shown_path(out)}",
            flush=True,
        )
