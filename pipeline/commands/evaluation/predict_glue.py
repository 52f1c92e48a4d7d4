"""Predictions of a fine-tuned encoder for a file of its GLUE task.

If the file has labels, the task's metrics are printed as well.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from pipeline.console import Parser


def parse(words: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = Parser("scripts/predict_glue.sh", __doc__)
    parser.add_argument(
        "checkpoint",
        type=Path,
        metavar="CHECKPOINT",
        help="what scripts/finetune_glue.sh has kept, such as .../CoLA/lr3e-05-seed1/checkpoint_best.pt; "
        "dictionary and tokeniser lie beside it",
    )
    parser.add_argument("--task", required=True, help="the task it is fine-tuned for, such as CoLA")
    parser.add_argument(
        "--input",
        type=Path,
        required=True,
        metavar="TSV",
        help="a file in the layout of the task's train.tsv, dev.tsv or test.tsv (.gz as well)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="where the predictions go, in the form of GLUE's server: index, prediction "
        "(default: <name of the input>.<task>.predictions.tsv in the current folder)",
    )
    return parser.parse_args(words)
