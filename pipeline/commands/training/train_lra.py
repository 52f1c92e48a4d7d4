"""Train on a task of Long Range Arena as a YAML of configs/lra_skyformer or lra_state_space describes.

With --encoder-attention PLAN among the fairseq-train flags, PLAN is a mechanism for every layer, such as
lln_diag, or a layer plan, such as diag,norm (default: softmax in lra_skyformer, diag,norm in
lra_state_space). The YAML is turned into a plain fairseq-train command, which is printed; flags of
fairseq-train at the end override it. Whatever the number of GPUs, --update-freq is chosen such that the
effective batch stays that of the YAML. Running the same command again resumes. checkpoint_best.pt is the
best on valid; run.json records preset, attention, updates, seed and where the data come from.
"""

import argparse
from collections.abc import Sequence

from pipeline.commands.training.train_lm import training_parser
from pipeline.console import parse_before_flags


def parse(words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Our own options, and what is left for fairseq-train."""
    example, runs = "configs/lra_skyformer/listops.yaml", "runs/<preset>/<task>/<plan>"
    parsers = training_parser("scripts/train_lra.sh", __doc__, example, "data-prep/lra.sh", runs)
    return parse_before_flags(*parsers, words)
