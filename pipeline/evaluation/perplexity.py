"""Perplexity of a checkpoint, with the counts that make it trustworthy."""

import argparse
import ast
import contextlib
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from fairseq import options as fairseq_options
from fairseq.data import Dictionary
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq_cli import eval_lm
from torch import nn

from pipeline.console import Parser
from pipeline.data.prepared import PreparedData
from pipeline.errors import UserError
from pipeline.evaluation.eval_ppl import COMMAND
from pipeline.evaluation.evaluators import TrainedRun
from pipeline.evaluation.scoring import ChunkedScorer, figures
from pipeline.evaluation.unigram import unigram_bits
from pipeline.files import ROOT, shown_path
from pipeline.training.checkpoint import CheckpointInfo, read_checkpoint

TOKENS_PER_BATCH = 16_384


def evaluate(
    checkpoint: CheckpointInfo,
    data: PreparedData,
    split: str,
    context_window: int = 0,
    extra: Sequence[str] = (),
    compiled: bool = False,
) -> dict[str, Any]:
    """Run `fairseq-eval-lm` on one split; the result as it is written to JSON."""
    dictionary = Dictionary.load(str(data.dictionary))
    checkpoint.check_dictionary(data, len(dictionary))
    words = [str(data.folder), "--path", str(checkpoint.path), "--gen-subset", split]
    words += ["--user-dir", str(ROOT / "user_dir"), "--sample-break-mode", "none"]
    words += ["--tokens-per-sample", str(checkpoint.tokens_per_sample)]
    words += ["--context-window", str(context_window), "--no-progress-bar"]
    words += ["--max-tokens", str(max(TOKENS_PER_BATCH, checkpoint.tokens_per_sample))]
    words += ["--num-workers", "0"]  # a worker outlives the evaluation, and with it the caller's locks
    if not torch.cuda.is_available():
        words.append("--cpu")
    parser = fairseq_options.get_eval_lm_parser()
    parser.error = Parser(COMMAND).error  # argparse would print fairseq's four screens of usage
    args = fairseq_options.parse_args_and_arch(parser, [*words, *extra])
    check_lengths(checkpoint, args)
    start = time.monotonic()
    with counted(compiled) as counter:
        bits = float(eval_lm.main(convert_namespace_to_omegaconf(args))["loss"])
    if counter.tokens == 0:
        raise UserError(
            f"not one token of {split} was evaluated; is --tokens-per-sample "
            f"({args.tokens_per_sample}) longer than the model or the batch allows?"
        )
    return {
        "checkpoint": shown_path(checkpoint.path),
        "architecture": checkpoint.architecture,
        "parameters": counter.parameters,
        "updates": checkpoint.updates,
        "data": shown_path(data.folder),
        "corpus": data.manifest.get("corpus"),
        "split": split,
        "tokens_per_sample": args.tokens_per_sample,
        "context_window": context_window,
        "model_overrides": ast.literal_eval(args.model_overrides),
        **figures(bits, counter.tokens, data, split),
        "seconds": round(time.monotonic() - start, 2),
    }


def check_lengths(checkpoint: CheckpointInfo, args: argparse.Namespace) -> None:
    """UserError where fairseq would silently drop samples, or fail."""
    if args.tokens_per_sample > checkpoint.max_positions:
        raise UserError(
            f"--tokens-per-sample is {args.tokens_per_sample}, but {checkpoint.path} was trained "
            f"for {checkpoint.max_positions} positions"
        )
    if not 0 <= args.context_window < args.tokens_per_sample:
        raise UserError(
            f"--context-window is {args.context_window}; it must be at least 0 and less than "
            f"--tokens-per-sample, {args.tokens_per_sample}, such as {args.tokens_per_sample // 2}"
        )


@dataclass
class Counter:
    """Counts what `fairseq-eval-lm` evaluates, which it does not report itself, and adds up its loss."""

    tokens: int = 0
    parameters: int = 0
    scored: int = 0
    nats: float = 0.0

    def count(self, batches: Iterable[dict[str, Any]], pad: int) -> Iterator[dict[str, Any]]:
        """The batches, their scored targets added up on the way."""
        for batch in batches:
            targets = batch.get("target", [])
            starts = batch.get("start_indices", [0] * len(targets))
            for target, start in zip(targets, starts, strict=True):
                self.tokens += int(target[start:].ne(pad).sum())
            yield batch


class SummingScorer(ChunkedScorer):
    """Adds the losses up in `counter`, in double precision.

    fairseq's sum is in single precision, which over a test split costs the sixth digit.
    """

    def __init__(self, counter: Counter, compiled: bool, *arguments: Any) -> None:
        super().__init__(*arguments, compiled=compiled)
        self.counter = counter

    def generate(self, models: list[nn.Module], sample: dict[str, Any], **unused: object) -> list:
        """As the scorer above; infinite losses are left out, as fairseq leaves them."""
        rows = super().generate(models, sample)
        for row in rows:
            scores = row[0]["positional_scores"].double()
            finite = scores[scores.isfinite()]
            self.counter.scored += finite.numel()
            self.counter.nats -= float(finite.sum())
        return rows


@contextlib.contextmanager
def counted(compiled: bool = False) -> Iterator[Counter]:
    """While inside, `fairseq_cli.eval_lm` counts what it evaluates, and never holds a batch's logits."""
    counter = Counter()
    function, scorer = eval_lm.eval_lm, eval_lm.SequenceScorer

    def counting(models: Any, batch_iterator: Any, target_dictionary: Any, **rest: Any) -> Any:
        counter.parameters = sum(p.numel() for p in models[0].parameters())
        batches = counter.count(batch_iterator, target_dictionary.pad())
        results = function(models, batch_iterator=batches, target_dictionary=target_dictionary, **rest)
        if counter.scored and not (rest.get("remove_bos_token") or rest.get("post_process")):
            results["loss"] = counter.nats / counter.scored / math.log(2)
        return results

    eval_lm.eval_lm, eval_lm.SequenceScorer = counting, partial(SummingScorer, counter, compiled)
    try:
        yield counter
    finally:
        eval_lm.eval_lm, eval_lm.SequenceScorer = function, scorer


def measure_run(run: TrainedRun) -> dict[str, Any]:
    """What a study records of a language model; `unigram_bits` is what token frequencies alone score."""
    checkpoint = read_checkpoint(run.checkpoint)
    splits = {split: evaluate(checkpoint, run.data, split) for split in ("valid", "test")}
    found = {
        split: {
            "tokens": one["tokens"],
            "words": one["words"],
            "bits": one["loss_bits_per_token"],
            "nats": one["loss_nats_per_token"],
            "perplexity": one["perplexity_per_token"],
            "perplexity_per_word": one["perplexity_per_word"],
            "unigram_bits": unigram_bits(run.data, split),
        }
        for split, one in splits.items()
    }
    return {
        **found,
        "architecture": checkpoint.architecture,
        "parameters": splits["test"]["parameters"],
        "best_update": checkpoint.updates,
    }
