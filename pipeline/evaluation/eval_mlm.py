"""Masked-LM perplexity of a pre-trained encoder.

15 % of the tokens are masked as in training, the same ones for every encoder. The result is printed and
written as JSON.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from pipeline.console import Parser, add_splits, number_of
from pipeline.evaluation.result_files import result_files
from pipeline.files import write_json
from pipeline.outputs import json_with

RESULT = json_with("checkpoint", "split", "masked_tokens", "perplexity_per_token")


def parse(words: Sequence[str]) -> argparse.Namespace:
    parser = Parser("scripts/eval_mlm.sh", __doc__)
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="of scripts/pretrain_roberta.sh")
    parser.add_argument("data", type=Path, metavar="DATA", help="a folder written by data-prep/roberta.sh")
    add_splits(parser)
    return parser.parse_args(words)


def main() -> None:
    """Evaluate each split."""
    options = parse(sys.argv[1:])
    from pipeline.data.prepared import open_prepared
    from pipeline.evaluation.masked_lm import evaluate
    from pipeline.training.encoder_checkpoint import read_encoder
    from pipeline.training.save_dir import whole_checkpoint

    path = whole_checkpoint(options.checkpoint.absolute())
    files = result_files(options, path, RESULT)
    encoder = read_encoder(path)
    data = open_prepared(options.data.absolute(), tuple(options.splits))
    for split, result in evaluate(encoder, data, options.splits).items():
        out = files[split]
        write_json(out, result)
        print(
            f"{encoder.architecture}, {number_of(encoder.updates, 'updates')}, {split}: masked-LM perplexity "
            f"{result['perplexity_per_token']:.2f} over {result['masked_tokens']:,} masked tokens\n"
            f"  written to  {out}",
            flush=True,
        )
