"""Pre-train a RoBERTa encoder as a YAML of configs/ describes it.

The YAML becomes a plain fairseq-train command, which is printed; flags of fairseq-train at the end override
it. Whatever the number of GPUs, --update-freq keeps the effective batch that of the YAML. Running the same
command again resumes from the newest whole checkpoint; a finished run is left as it is. The tokeniser is
copied next to the checkpoints, for scripts/finetune_glue.sh.
"""

import argparse
from collections.abc import Sequence

from pipeline.commands.training.train_lm import training_parser
from pipeline.console import parse_before_flags


def parse(words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Our own options, and what is left for fairseq-train."""
    example = "configs/roberta/wikitext103_lln_diag.yaml"
    parsers = training_parser("scripts/pretrain_roberta.sh", __doc__, example, "data-prep/roberta.sh")
    return parse_before_flags(*parsers, words)
