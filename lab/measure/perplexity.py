"""Perplexity of a language model, as `fairseq-eval-lm` computes it, and of an encoder over masked tokens.

And the perplexity of token frequencies alone. fairseq cuts the windows of --context-window; `ChunkedScorer`
leaves out the scores of the context.
"""

import argparse
import ast
import contextlib
import math
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from fairseq import options as fairseq_options
from fairseq.data import Dictionary
from fairseq.data.data_utils import load_indexed_dataset
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.sequence_scorer import SequenceScorer
from fairseq.tasks.masked_lm import MaskedLMConfig, MaskedLMTask
from fairseq_cli import eval_lm
from torch import nn

from lab.console import Parser
from lab.data.prepared import PreparedData
from lab.errors import UserError
from lab.files import ROOT, shown_path
from lab.measure import TrainedRun
from lab.measure.accuracy import batches_of
from lab.options.evaluate import PPL_SCRIPT
from lab.run.checkpoint import (
    Checkpoint,
    architecture_of,
    load_encoder,
    read_dictionary,
    read_encoder,
    read_language_model,
    usual_device,
)
from lab.run.recipe import check_owned
from user_dir.fairseq_patches.data import check_scores_of_text
from user_dir.models import LinearAttentionRoberta
from user_dir.models.compiled import compile_features
from user_dir.models.output_matrix import has_output_matrix, masked_lm_features, output_matrix
from user_dir.modules.linear_cross_entropy import ROWS, token_losses

OWNED_FLAGS = (
    *("--path", "--gen-subset", "--user-dir", "--context-window", "--num-workers", "--no-progress-bar"),
    *("--task", "--checkpoint-suffix", "--checkpoint-shard-count"),
)
"""Flags of fairseq-eval-lm that identify a result, and those that the command sets itself."""
TOKENS_PER_BATCH = 16_384
MASKED_TOKENS_PER_BATCH = 4096
MASK_SEED = 1
LARGEST_EXPONENT = math.log(sys.float_info.max)


def evaluate(
    checkpoint: Checkpoint,
    data: PreparedData,
    split: str,
    context_window: int = 0,
    extra: Sequence[str] = (),
    compiled: bool = False,
) -> dict[str, Any]:
    """Run `fairseq-eval-lm` on one split; the result as it is written to JSON."""
    check_owned(PPL_SCRIPT, extra, OWNED_FLAGS)
    dictionary = Dictionary.load(str(data.dictionary))
    checkpoint.check_dictionary(data, len(dictionary))
    words = usual_words(checkpoint, data, split, context_window)
    parser = fairseq_options.get_eval_lm_parser()
    parser.error = Parser(PPL_SCRIPT).error  # argparse would print fairseq's four screens of usage
    args = fairseq_options.parse_args_and_arch(parser, [*words, *extra])
    check_lengths(checkpoint, args)
    cfg = convert_namespace_to_omegaconf(args)
    start = time.monotonic()
    with scored_in_pieces(compiled) as scores:
        bits = float(eval_lm.main(cfg)["loss"])
    if scores.tokens and not (cfg.common_eval.post_process or getattr(cfg.task, "add_bos_token", False)):
        bits = scores.nats / scores.tokens / math.log(2)
    if scores.tokens == 0:
        raise UserError(
            f"not one token of {split} was evaluated; is --tokens-per-sample "
            f"({args.tokens_per_sample}) longer than the model or the batch allows?"
        )
    return {
        "checkpoint": shown_path(checkpoint.path),
        "architecture": checkpoint.architecture,
        "parameters": scores.parameters,
        "updates": checkpoint.updates,
        "data": shown_path(data.folder),
        "corpus": data.manifest.get("corpus"),
        "split": split,
        "tokens_per_sample": args.tokens_per_sample,
        "context_window": context_window,
        "sample_break_mode": args.sample_break_mode,
        "model_overrides": ast.literal_eval(args.model_overrides),
        "flags": list(extra),
        **figures(bits, scores.tokens, data, split),
        "seconds": round(time.monotonic() - start, 2),
    }


def usual_words(checkpoint: Checkpoint, data: PreparedData, split: str, context_window: int) -> list[str]:
    """The default arguments of `fairseq-eval-lm`; the user's come after them."""
    words = [str(data.folder), "--path", str(checkpoint.path), "--gen-subset", split]
    words += ["--user-dir", str(ROOT / "user_dir"), "--sample-break-mode", "none"]
    words += ["--tokens-per-sample", str(checkpoint.tokens_per_sample)]
    words += ["--context-window", str(context_window), "--no-progress-bar"]
    words += ["--max-tokens", str(max(TOKENS_PER_BATCH, checkpoint.tokens_per_sample))]
    words += ["--num-workers", "0"]  # a worker outlives the evaluation, and with it the caller's locks
    return words if torch.cuda.is_available() else [*words, "--cpu"]


def check_lengths(checkpoint: Checkpoint, args: argparse.Namespace) -> None:
    """UserError where fairseq would silently drop samples."""
    if args.tokens_per_sample > checkpoint.max_positions:
        raise UserError(
            f"--tokens-per-sample is {args.tokens_per_sample}, but {checkpoint.path} was trained "
            f"for {checkpoint.max_positions} positions; give {checkpoint.max_positions} or fewer"
        )


class Scores:
    """Sums of a scorer: the tokens, and their loss in double precision.

    fairseq's own sum is in single precision, which over a test split costs the sixth digit.
    """

    def __init__(self) -> None:
        self.tokens = self.parameters = 0
        self.nats = 0.0

    def add(self, model: nn.Module, rows: list) -> None:
        """The `rows` that `generate` returns, whose scores are finite."""
        self.parameters = self.parameters or sum(p.numel() for p in model.parameters())
        for row in rows:
            scores = row[0]["positional_scores"].double()
            self.tokens += scores.numel()
            self.nats -= float(scores.sum())


class ChunkedScorer(SequenceScorer):
    """The scorer of `fairseq-eval-lm`, with the logits of `ROWS` tokens at a time; adds up the losses.

    The log-probabilities are the same to rounding. An adaptive softmax is left to fairseq, also in pieces.
    `compiled` has torch.compile compute the features on a GPU.
    """

    def __init__(
        self,
        dictionary: Dictionary,
        softmax_batch: int = 0,
        compiled: bool = False,
        sums: Scores | None = None,
    ) -> None:
        super().__init__(dictionary, softmax_batch or ROWS)
        self.to_compile = compiled
        self.sums = sums or Scores()

    @torch.no_grad()
    def generate(self, models: list[nn.Module], sample: dict[str, Any], **unused: object) -> list:
        """A list for each row, whose first entry holds the row's "tokens" and their "positional_scores"."""
        (model,) = models
        rows = self.in_pieces(model, sample) if has_output_matrix(model) else super().generate(models, sample)
        check_scores_of_text(rows)
        self.sums.add(model, rows)
        return rows

    def in_pieces(self, model: nn.Module, sample: dict[str, Any]) -> list:
        """Does the same as `generate` for a model with one output matrix."""
        model.eval()
        if self.to_compile and sample["target"].device.type != "cpu":
            self.to_compile = False
            compile_features(model)
        features, _ = model(**sample["net_input"], features_only=True)
        target = sample["target"]
        weight, bias = output_matrix(model)
        losses = token_losses(features.flatten(0, 1), weight, target.flatten(), bias, rows=self.softmax_batch)
        scores, kept = -losses.view(target.shape), target.ne(self.pad)
        for row, start in enumerate(sample.get("start_indices", [])):
            kept[row, :start] = False
        return [
            [{"tokens": tokens[real], "positional_scores": found[real]}]
            for tokens, found, real in zip(target, scores, kept, strict=True)
        ]


@contextlib.contextmanager
def scored_in_pieces(compiled: bool = False) -> Iterator[Scores]:
    """Inside the block, `fairseq_cli.eval_lm` scores with `ChunkedScorer`; yields its sums."""
    scores, usual = Scores(), eval_lm.SequenceScorer
    eval_lm.SequenceScorer = partial(ChunkedScorer, compiled=compiled, sums=scores)
    try:
        yield scores
    finally:
        eval_lm.SequenceScorer = usual


def figures(bits: float, tokens: int, data: PreparedData, split: str) -> dict[str, Any]:
    """Loss and perplexities from bits per token; per word if the whole split was evaluated."""
    words, unknown, whole = data.words(split), data.words_unknown(split), data.tokens(split)
    if tokens != whole:
        words, unknown = None, f"only {tokens:,} of {whole:,} tokens were evaluated"
    nats = bits * math.log(2)
    return {
        "tokens": tokens,
        "words": words,
        "words_unknown": unknown,
        "loss_bits_per_token": bits,
        "loss_nats_per_token": nats,
        "perplexity_per_token": perplexity_of(nats),
        "perplexity_per_word": perplexity_of(nats * tokens / words) if words else None,
    }


def perplexity_of(nats: float) -> float:
    """Perplexity from the loss in nats; UserError where it overflows, as of a model that has diverged."""
    if not nats < LARGEST_EXPONENT:
        raise UserError(
            f"the loss is {nats:.4g} nats per token: the training has diverged; name an earlier checkpoint"
        )
    return math.exp(nats)


def unigram_bits(data: PreparedData, split: str) -> float:
    """Bits per token of `split` under the frequencies of the train split, one added to each count."""
    dictionary = Dictionary.load(str(data.dictionary))
    train, other = (_counts(data, name, dictionary) for name in ("train", split))
    bits = -np.log2((train + 1) / (train + 1).sum())
    return float((other * bits).sum() / other.sum()) if other.sum() else math.nan


def _counts(data: PreparedData, split: str, dictionary: Dictionary) -> np.ndarray:
    """How often each token occurs, the end of a line included."""
    rows = load_indexed_dataset(str(data.folder / split), dictionary)
    counts = np.zeros(len(dictionary), dtype=np.int64)
    for i in range(len(rows)):
        counts += np.bincount(rows[i].numpy(), minlength=len(dictionary))
    return counts


def measure_run(run: TrainedRun) -> dict[str, Any]:
    """Figures of a language model for a study; `unigram_bits` is the score of token frequencies alone."""
    checkpoint = read_language_model(run.checkpoint)
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


@torch.inference_mode()
def masked_lm_loss(model: LinearAttentionRoberta, task: MaskedLMTask, split: str) -> tuple[float, int]:
    """Mean loss per masked token in nats, and the number of masked tokens.

    The masks are those of fairseq's task with its seed: the same for every encoder of one length.
    """
    device = usual_device()
    model = model.to(device).eval()
    size = max(MASKED_TOKENS_PER_BATCH, model.max_positions())
    total, count = 0.0, 0
    for batch in batches_of(task, split, device, max_tokens=size, ignore_invalid_inputs=False):
        tokens, targets = batch["net_input"]["src_tokens"], batch["target"]
        masked = targets.ne(task.source_dictionary.pad())
        x, (weight, bias) = masked_lm_features(model, {"src_tokens": tokens}, masked)
        total += float(token_losses(x, weight, targets[masked], bias).sum())
        count += int(masked.sum())
    if count == 0:
        raise UserError(f"not one token of {split} was masked; is the split empty?")
    return total / count, count


def evaluate_masked_lm(
    encoder: Checkpoint, data: PreparedData, splits: Iterable[str]
) -> Iterator[dict[str, Any]]:
    """The result of each split, as it is written to JSON."""
    model = load_encoder(encoder, read_dictionary(data.folder))
    config = MaskedLMConfig(
        data=str(data.folder),
        tokens_per_sample=encoder.max_positions,
        sample_break_mode="none",
        seed=MASK_SEED,
    )
    task = MaskedLMTask.setup_task(config)
    for split in splits:
        loss, count = masked_lm_loss(model, task, split)
        yield {
            "checkpoint": shown_path(encoder.path),
            "architecture": architecture_of(encoder),
            "parameters": sum(p.numel() for p in model.parameters()),
            "updates": encoder.updates,
            "corpus": data.manifest.get("corpus"),
            "tokens_per_sample": encoder.max_positions,
            "split": split,
            "masked_tokens": count,
            "loss_nats_per_token": loss,
            "perplexity_per_token": perplexity_of(loss),
        }


def measure_masked_lm(run: TrainedRun) -> dict[str, Any]:
    """Figures of an encoder for a study; `unigram_bits` is the score of token frequencies alone."""
    encoder = read_encoder(run.checkpoint)
    results = list(evaluate_masked_lm(encoder, run.data, ("valid", "test")))
    found = {
        one["split"]: {
            "masked_tokens": one["masked_tokens"],
            "bits": one["loss_nats_per_token"] / math.log(2),
            "perplexity": one["perplexity_per_token"],
            "unigram_bits": unigram_bits(run.data, one["split"]),
        }
        for one in results
    }
    return {
        **found,
        "architecture": results[-1]["architecture"],
        "parameters": results[-1]["parameters"],
        "best_update": encoder.updates,
    }
