"""Perplexity of a trained language model on a prepared corpus, as fairseq-eval-lm computes it.

Printed and written: loss in bits and nats per token, perplexity per token and per word (words of the raw
text are separated by white space, plus one end-of-line per line), and the number of tokens counted.
Evaluating no token at all is an error.

With --carry-state the split is read from end to end in segments, each with the state that the one before
left: every token sees all earlier ones of its stream, however many. Perplexity, speed and memory by position
then come as a table, in the JSON and as a plot beside it.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.console import Parser, add_splits, count, number_of, parse_before_flags
from pipeline.evaluation.evaluate import publish, result_files
from pipeline.outputs import json_with
from pipeline.training.fairseq_process import import_quickly

STREAMS, SEGMENT = 1, 512
COMMAND = "scripts/eval_ppl.sh"
RESULT = json_with("checkpoint", "split", "context_window", "perplexity_per_token")
CARRIED_RESULT = json_with("checkpoint", "split", "streams", "segment", "buckets")


def parse(words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Our own options, and what is left for fairseq-eval-lm."""
    options = Parser(COMMAND, add_help=False)
    add_splits(
        options,
        "<checkpoint>.<split>.json beside the checkpoint, with --carry-state "
        "<checkpoint>.<split>.carried.json",
    )
    options.add_argument(
        "--context-window",
        type=int,
        default=0,
        metavar="N",
        help="let every token see at least N earlier ones (slower; published figures often do)",
    )
    options.add_argument(
        "--compile",
        action="store_true",
        help="on a GPU: compile the model with torch.compile, which takes a minute first",
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
    if not given.carry_state and (given.streams or given.segment or given.reset_at_documents):
        parser.error("--streams, --segment and --reset-at-documents go with --carry-state")
    if given.carry_state and given.compile:
        parser.error("--compile does not go with --carry-state")
    if given.carry_state and given.context_window:
        parser.error("--context-window does not go with --carry-state, whose tokens see all earlier ones")
    given.streams, given.segment = given.streams or STREAMS, given.segment or SEGMENT
    return given, extra


def describe(result: dict[str, Any]) -> str:
    """The result in a few readable lines."""
    per_word = result["perplexity_per_word"]
    overrides = result["model_overrides"]
    overridden = f", with --model-overrides {overrides}" if overrides else ""
    return (
        f"{result['architecture']}, {number_of(result['updates'], 'updates')}, {result['split']}: "
        f"{result['tokens']:,} tokens{overridden}\n"
        f"  loss        {result['loss_bits_per_token']:.4f} bits = "
        f"{result['loss_nats_per_token']:.4f} nats per token\n"
        f"  perplexity  {result['perplexity_per_token']:.2f} per token, "
        + (f"{per_word:.2f} per word" if per_word else "per word unknown")
    )


def main() -> None:
    """Evaluate each split, its states carried or not."""
    options, extra = parse(sys.argv[1:])
    import_quickly("pipeline.training.checkpoint")
    from pipeline.data.prepared import open_prepared
    from pipeline.evaluation.carried_perplexity import BESIDE, evaluate_carried, read_extra, write_carried
    from pipeline.evaluation.perplexity import evaluate
    from pipeline.training.checkpoint import read_language_model

    path = options.checkpoint.absolute()
    if options.carry_state:
        files = result_files(COMMAND, options, path, CARRIED_RESULT, ".carried.json", BESIDE)
    else:
        files = result_files(COMMAND, options, path, RESULT)
    checkpoint = read_language_model(path)
    data = open_prepared(options.data.absolute(), tuple(options.splits))
    overrides = read_extra(extra) if options.carry_state else {}
    for split, out in files.items():
        if options.carry_state:
            write_carried(evaluate_carried(checkpoint, data, split, options, overrides), out)
            continue
        result = evaluate(checkpoint, data, split, options.context_window, extra, options.compile)
        publish(result, out, describe(result))
