"""Export a model for `transformers`: weights, configuration, tokeniser and a file of plain PyTorch.

DIR then loads anywhere with torch and transformers, without fairseq and without this project:

    AutoModelForCausalLM.from_pretrained(DIR, trust_remote_code=True)      # a language model
    AutoModelForMaskedLM.from_pretrained(DIR, trust_remote_code=True)      # an encoder

Exported are models whose layers have the attentions softmax, elu, norm, diag, lln and lln_diag.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from pipeline.console import Parser


def parse(words: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = Parser("scripts/export_hf.sh", __doc__)
    parser.add_argument(
        "checkpoint",
        type=Path,
        metavar="CHECKPOINT",
        help="of train_lm.sh, pretrain_roberta.sh or finetune_glue.sh, with its dict.txt beside it",
    )
    parser.add_argument("out", type=Path, metavar="DIR", help="a new folder, or one exported before")
    parser.add_argument(
        "--head",
        metavar="NAME",
        help="of an encoder: this classification head instead of the masked-LM head "
        "(AutoModelForSequenceClassification)",
    )
    return parser.parse_args(words)
