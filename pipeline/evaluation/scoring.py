"""Scores of target tokens without the logits of a whole batch, and the perplexities made of them."""

import math
from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.sequence_scorer import SequenceScorer
from torch import nn

from pipeline.data.prepared import PreparedData
from user_dir.models.compiled import compile_features
from user_dir.models.output_matrix import has_output_matrix, output_matrix
from user_dir.modules.linear_cross_entropy import ROWS, token_losses


class ChunkedScorer(SequenceScorer):
    """The scorer of `fairseq-eval-lm`, with the logits of `ROWS` tokens at a time.

    The log-probabilities are the same to rounding. An adaptive softmax is left to fairseq, also in pieces.
    `compiled` has torch.compile compute the features on a GPU.
    """

    def __init__(self, dictionary: Dictionary, softmax_batch: int = 0, compiled: bool = False) -> None:
        super().__init__(dictionary, softmax_batch or ROWS)
        self.to_compile = compiled

    @torch.no_grad()
    def generate(self, models: list[nn.Module], sample: dict[str, Any], **unused: object) -> list:
        """A list for each row, whose first entry holds the row's "tokens" and their "positional_scores"."""
        (model,) = models
        if not has_output_matrix(model):
            return super().generate(models, sample)
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


def figures(bits: float, tokens: int, data: PreparedData, split: str) -> dict[str, Any]:
    """Loss and perplexities from bits per token; per word if the whole split was evaluated."""
    words = data.words(split)
    if tokens != data.tokens(split):
        words = None
    nats = bits * math.log(2)
    return {
        "tokens": tokens,
        "words": words,
        "loss_bits_per_token": bits,
        "loss_nats_per_token": nats,
        "perplexity_per_token": math.exp(nats),
        "perplexity_per_word": math.exp(nats * tokens / words) if words else None,
    }
