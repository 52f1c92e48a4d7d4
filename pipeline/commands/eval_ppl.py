"""Perplexity of a trained language model on a prepared corpus, as fairseq-eval-lm computes it.

Printed and written: loss in bits and nats per token, perplexity per token and per word (words of the raw
text are separated by white space, plus one end-of-line per line), and the number of tokens counted.
Evaluating no token at all is an error.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from pipeline.console import Parser, parse_before_flags

COMMAND = "scripts/eval_ppl.sh"


def parse(words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Our own options, and what is left for fairseq-eval-lm."""
    options = Parser(COMMAND, add_help=False)
    options.add_argument(
        "--split", default="test", help="valid, test (the default), train, or several with commas"
    )
    options.add_argument(
        "--context-window",
        type=int,
        default=0,
        metavar="N",
        help="let every token see at least N earlier ones (slower; published figures often do)",
    )
    options.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="where the JSON goes (default: <checkpoint>.<split>.json beside the checkpoint)",
    )
    usage = f"{COMMAND} CHECKPOINT DATA [options] [fairseq-eval-lm flags ...]"
    parser = Parser(COMMAND, __doc__, parents=[options], usage=usage)
    parser.add_argument(
        "checkpoint",
        type=Path,
        metavar="CHECKPOINT",
        help="such as runs/wikitext103/transnormer_t1/checkpoint_best.pt",
    )
    parser.add_argument(
        "data",
        type=Path,
        metavar="DATA",
        help="a folder written by data-prep/ with the dictionary used in training",
    )
    given, extra = parse_before_flags(parser, options, words)
    given.splits = given.split.split(",")
    if given.out and len(given.splits) > 1:
        parser.error("--out names one file, but --split several splits")
    return given, extra
