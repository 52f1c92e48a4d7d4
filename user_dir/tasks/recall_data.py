"""Multi-query associative recall (MQAR, Arora et al. 2023, "Zoology"): pairs to remember, then questions."""

from collections.abc import Sequence

import numpy as np
import torch
from fairseq.data import Dictionary
from torch import Tensor

from .drawn_rows import DrawnDataset

EARLY = 0.01
"""The exponent of the distances from the pairs to their questions, as in Zoology: most of them are short."""


def recall_dictionary(keys: int, values: int) -> Dictionary:
    """fairseq's four special symbols, then the keys, then the values."""
    dictionary = Dictionary()
    for letter, count in (("k", keys), ("v", values)):
        for number in range(1, count + 1):
            dictionary.add_symbol(f"{letter}{number}")
    return dictionary


def most_pairs(length: int) -> int:
    """How many pairs a row may have: each takes two positions, and its question two more."""
    return length // 4


def shares_of(places: int) -> np.ndarray:
    """How probable each place behind the pairs is for a question, from the first to the last."""
    shares = EARLY * np.arange(1, places + 1) ** (EARLY - 1)
    return shares / shares.sum()


class RecallDataset(DrawnDataset):
    """Rows `k1 v1 ... kP vP`, then each key once more, in any order, between random values.

    Only the questions count: the target at a repeated key is the value that stood behind it. The keys of a
    row are drawn without replacement, so that each question has one answer, and the filling is of values,
    which are never asked for.

    Args:
        dictionary: of `recall_dictionary`.
        keys: how many of its symbols are keys.
        length: N.
        pairs: the numbers P, each up to `most_pairs`; a row has one of them, drawn with equal probability.
        samples, seed, split: see `DrawnDataset`.
    """

    def __init__(
        self,
        dictionary: Dictionary,
        keys: int,
        length: int,
        pairs: Sequence[int],
        samples: int,
        seed: int,
        split: str,
    ) -> None:
        super().__init__(length, samples, dictionary.pad(), seed, split)
        self.first = dictionary.nspecial
        self.keys, self.values = keys, len(dictionary) - self.first - keys
        self.pairs = pairs
        self.shares = {number: shares_of((length - 2 * number) // 2) for number in pairs}

    def draw(self, generator: np.random.Generator) -> dict[str, Tensor]:
        """See `DrawnDataset.draw`."""
        pairs = int(generator.choice(self.pairs))
        keys = self.first + generator.choice(self.keys, pairs, replace=False)
        values = self.first + self.keys + generator.integers(0, self.values, pairs)
        source = self.first + self.keys + generator.integers(0, self.values, self.length)
        source[: 2 * pairs] = np.stack([keys, values], axis=1).ravel()
        shares = self.shares[pairs]
        places = 2 * pairs + 2 * generator.choice(len(shares), pairs, replace=False, p=shares)
        source[places] = keys
        target = np.full(self.length, self.pad)
        target[places] = values
        return {"source": torch.from_numpy(source), "target": torch.from_numpy(target)}
