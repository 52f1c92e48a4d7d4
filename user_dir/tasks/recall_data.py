"""Multi-query associative recall (MQAR, Arora et al. 2023, "Zoology"): pairs to remember, then questions."""

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


class RecallDataset(DrawnDataset):
    """Rows `k1 v1 ... kP vP`, then each key once more, in any order, between random values.

    Only the questions count: the target at a repeated key is the value that stood behind it. The keys of a
    row are drawn without replacement, so that each question has one answer, and the filling is of values,
    which are never asked for.

    Args:
        dictionary: of `recall_dictionary`.
        keys: how many of its symbols are keys.
        length: N.
        pairs: P, up to `most_pairs`.
        samples, seed, split: see `DrawnDataset`.
    """

    def __init__(
        self, dictionary: Dictionary, keys: int, length: int, pairs: int, samples: int, seed: int, split: str
    ) -> None:
        super().__init__(length, samples, dictionary.pad(), seed, split)
        self.first = dictionary.nspecial
        self.keys, self.values = keys, len(dictionary) - self.first - keys
        self.pairs = pairs
        shares = EARLY * np.arange(1, (length - 2 * pairs) // 2 + 1) ** (EARLY - 1)
        self.shares = shares / shares.sum()

    def draw(self, generator: np.random.Generator) -> dict[str, Tensor]:
        """See `DrawnDataset.draw`."""
        keys = self.first + generator.choice(self.keys, self.pairs, replace=False)
        values = self.first + self.keys + generator.integers(0, self.values, self.pairs)
        source = self.first + self.keys + generator.integers(0, self.values, self.length)
        source[: 2 * self.pairs] = np.stack([keys, values], axis=1).ravel()
        places = generator.choice(len(self.shares), self.pairs, replace=False, p=self.shares)
        places = 2 * self.pairs + 2 * places
        source[places] = keys
        target = np.full(self.length, self.pad)
        target[places] = values
        return {"source": torch.from_numpy(source), "target": torch.from_numpy(target)}
