"""Fine-tune an encoder on GLUE: every task, learning rate and seed, and a table next to the papers'.

The best learning rate of each task is the one with the best mean over the seeds on the dev set, as in the
papers. Results: glue.json and glue.md in --out, and a log in each run's folder; the weights of each task's
best run are kept. After an interruption, even a kill, run the same command again: finished runs are skipped,
the others resume from their last epoch.
"""

import argparse
import math
from collections.abc import Callable, Sequence
from pathlib import Path

from pipeline.console import Parser, count
from pipeline.glue_tasks import TASKS


def parse(words: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = Parser("scripts/finetune_glue.sh", __doc__)
    parser.add_argument(
        "checkpoint",
        type=Path,
        metavar="CHECKPOINT",
        help="of scripts/pretrain_roberta.sh, or of fairseq's RoBERTa",
    )
    parser.add_argument(
        "--task",
        default="all",
        metavar="TASKS",
        help=f"{', '.join(TASKS)}, several with commas, or all that are prepared (default: all)",
    )
    parser.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help="written by data-prep/glue.sh with the encoder's tokeniser (default: data/glue)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="where runs and results go (default: glue/<checkpoint> beside the checkpoint)",
    )
    parser.add_argument(
        "--learning-rates",
        type=numbers(float),
        metavar="A,B,...",
        help="learning rates instead of those of configs/glue_sweep.yaml",
    )
    parser.add_argument(
        "--seeds",
        type=numbers(int),
        metavar="A,B,...",
        help="seeds instead of those of configs/glue_sweep.yaml",
    )
    parser.add_argument(
        "--max-update",
        type=count,
        metavar="N",
        help="stop each run after N updates instead of the epochs of configs/glue/finetune.yaml",
    )
    parser.add_argument(
        "--jobs",
        type=count,
        metavar="N",
        help="runs in parallel (default: one per GPU; 1 without a GPU)",
    )
    return parser.parse_args(words)


def numbers(kind: type) -> Callable[[str], list]:
    """A reader of comma-separated numbers above 0."""

    def read(text: str) -> list:
        try:
            values = [kind(word) for word in text.split(",")]
        except ValueError:
            values = [0]
        if not all(0 < value < math.inf for value in values):
            what = "whole numbers" if kind is int else "numbers"
            raise argparse.ArgumentTypeError(
                f"{text!r} is not one or several {what} above 0, with commas between"
            )
        return values

    return read
