"""Train a model of images byte by byte as a YAML of configs/images describes it.

With --decoder-attention PLAN among the fairseq-train flags another attention takes the place of the YAML's.
The YAML becomes a plain fairseq-train command, which is printed; flags of fairseq-train at the end override
it. Running the same command again resumes. Losses in the log are bits per dimension; checkpoint_best.pt is
the best on valid.
"""

import argparse
from collections.abc import Sequence

from pipeline.commands.training.train_lm import training_parser
from pipeline.console import parse_before_flags


def parse(words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Our own options, and what is left for fairseq-train."""
    example = "configs/images/digits_linear.yaml"
    parsers = training_parser("scripts/train_images.sh", __doc__, example, "data-prep/images.sh")
    return parse_before_flags(*parsers, words)
