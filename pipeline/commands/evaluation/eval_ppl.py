"""Perplexity of a trained language model on a prepared corpus, as fairseq-eval-lm computes it.

Printed and written: loss in bits and nats per token, perplexity per token and per word (words of the raw
text are separated by white space, plus one end-of-line per line), and the number of tokens counted.
Evaluating no token at all is an error.

With --carry-state the split is read from end to end in segments, each with the state that the one before
left: every token sees all earlier ones of its stream, however many. Perplexity, speed and memory by position
then come as a table, in the JSON and as a plot beside it.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from pipeline.console import Parser, count, names, parse_before_flags

STREAMS, SEGMENT = 1, 512
COMMAND = "scripts/eval_ppl.sh"


def parse(words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Our own options, and what is left for fairseq-eval-lm."""
    options = Parser(COMMAND, add_help=False)
    options.add_argument(
        "--split",
        dest="splits",
        type=names,
        default="test",
        metavar="SPLIT",
        help="valid, test (the default), train, or several with commas",
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
        help="where the JSON goes (default: <checkpoint>.<split>.json beside the checkpoint, with "
        "--carry-state <checkpoint>.<split>.carried.json)",
    )
    options.add_argument(
        "--carry-state",
        action="store_true",
        help="read the split from end to end, states carried from segment to segment",
    )
    options.add_argument(
        "--streams",
        type=count,
        metavar="B",
        help=f"with --carry-state: read the split as B texts side by side (default: {STREAMS})",
    )
    options.add_argument(
        "--segment",
        type=count,
        metavar="N",
        help=f"with --carry-state: tokens of a stream read at a time (default: {SEGMENT}), which changes "
        "speed and memory, not the perplexity",
    )
    options.add_argument(
        "--reset-at-documents",
        action="store_true",
        help="with --carry-state: start again at each of WikiText's articles, B of them side by side",
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
    if given.out and len(given.splits) > 1:
        parser.error("--out names one file, but --split several splits")
    if not given.carry_state and (given.streams or given.segment or given.reset_at_documents):
        parser.error("--streams, --segment and --reset-at-documents go with --carry-state")
    if given.carry_state and given.context_window:
        parser.error("--context-window does not go with --carry-state, whose tokens see all earlier ones")
    given.streams, given.segment = given.streams or STREAMS, given.segment or SEGMENT
    return given, extra
