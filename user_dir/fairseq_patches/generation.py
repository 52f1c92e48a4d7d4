"""fairseq's generator: n-grams that may not repeat."""

import math

import torch
from fairseq.ngram_repeat_block import NGramRepeatBlock
from torch import Tensor

from .replacing import replaces


def apply() -> None:
    """The wrapper of the part that keeps n-grams from repeating."""

    @replaces(NGramRepeatBlock, "_no_repeat_ngram")
    def forbid_repeated(unused, self, tokens, lprobs, bsz, beam_size, step):
        return without_repeats(tokens[:, 1 : step + 1], lprobs, self.no_repeat_ngram_size)


def without_repeats(text: Tensor, scores: Tensor, size: int) -> Tensor:
    """Scores in which each word that would repeat an n-gram of its text is -inf.

    fairseq (every version) compares the n-grams with the end of the longest text that is allowed, which is
    padding, and so finds none. A row of which no word would be left, such as one that has to continue with
    the prompt's next word, stays as it is.

    Args:
        text: `(rows, length)` tokens so far, without the one before the text.
        scores: `(rows, vocabulary)` of the next word.
        size: of the n-grams, from 1 up.
    """
    length = text.shape[1]
    if length < size:
        return scores
    ngrams = text.unfold(1, size, 1)
    start = text[:, length - size + 1 :]
    rows, places = (ngrams[..., :-1] == start[:, None]).all(-1).nonzero(as_tuple=True)
    forbidden = torch.zeros_like(scores, dtype=torch.bool)
    forbidden[rows, ngrams[rows, places, -1]] = True
    left = scores.masked_fill(forbidden, -math.inf)
    return torch.where(left.isneginf().all(-1, keepdim=True), scores, left)
