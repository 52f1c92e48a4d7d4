"""The copy task of Katharopoulos et al. 2020 (section 4.1.1): sequences drawn on the fly from a seed."""

from typing import Any

import numpy as np
import torch
from fairseq.data import Dictionary
from torch import Tensor

from .drawn_rows import DrawnDataset

SEPARATOR = "<sep>"
SHORTEST = 8  # the least length with a copy in it


def copy_dictionary(symbols: int) -> Dictionary:
    """fairseq's four special symbols, the separator and `symbols` others."""
    dictionary = Dictionary()
    dictionary.add_symbol(SEPARATOR)
    for number in range(1, symbols + 1):
        dictionary.add_symbol(str(number))
    return dictionary


def copied_lengths(length: int) -> range:
    """How many symbols s may have when `s 0 s` and filling make `length`: N // 4 to (N - 1) // 2 - 1."""
    return range(length // 4, (length - 1) // 2)


class CopyDataset(DrawnDataset):
    """Sequences `s, separator, s`: the source is all but the last symbol, the target the next one.

    Only the separator and the second s count: before them the target is padding. The separator can be told
    although n differs, since nothing else ever counts before it, so that the least loss is 0.

    Args:
        dictionary: of `copy_dictionary`.
        length: N, of which s is N // 4 to (N - 1) // 2 - 1 symbols long, uniformly.
        samples, seed, split: see `DrawnDataset`.
    """

    def __init__(self, dictionary: Dictionary, length: int, samples: int, seed: int, split: str) -> None:
        super().__init__(length, samples, dictionary.pad(), seed, split)
        self.separator = dictionary.index(SEPARATOR)
        self.symbols = len(dictionary) - self.separator - 1

    def draw(self, generator: np.random.Generator) -> dict[str, Tensor]:
        """See `DrawnDataset.draw`."""
        lengths = copied_lengths(self.length)
        n = int(generator.integers(lengths.start, lengths.stop))
        s = torch.from_numpy(generator.integers(1, self.symbols + 1, n)) + self.separator
        whole = torch.cat([s, torch.tensor([self.separator]), s])
        target = whole[1:].clone()
        target[: n - 1] = self.pad
        return {"source": whole[:-1], "target": target}


def prompts(sample: dict[str, Any], pad: int) -> tuple[Tensor, Tensor]:
    """The prompt of free-running generation: `s, separator` with padding behind `(B, T)`, and n `(B,)`."""
    n = sample["target"].ne(pad).sum(1) - 1
    source = sample["net_input"]["src_tokens"][:, : int(n.max()) + 1]
    behind = torch.arange(source.shape[1], device=source.device) > n[:, None]
    return source.masked_fill(behind, pad), n
