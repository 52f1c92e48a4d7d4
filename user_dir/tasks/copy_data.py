"""The copy task of Katharopoulos et al. 2020 (section 4.1.1): sequences drawn on the fly from a seed."""

from typing import Any

import numpy as np
import torch
from fairseq.data import Dictionary, data_utils
from torch import Tensor

from .whole_rows import WholeRowsDataset

SPLITS = ("train", "valid", "test")
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


class CopyDataset(WholeRowsDataset):
    """Sequences `s, separator, s`: the source is all but the last symbol, the target the next one.

    Only the separator and the second s count: before them the target is padding. The separator can be told
    although n differs, since nothing else ever counts before it, so that the least loss is 0. A sequence
    depends on seed, split, epoch (in training) and its number only.

    Args:
        dictionary: of `copy_dictionary`.
        length: N, of which s is N // 4 to (N - 1) // 2 - 1 symbols long, uniformly.
        samples: sequences in an epoch.
        seed: of all splits.
        split: one of `SPLITS`.
    """

    def __init__(self, dictionary: Dictionary, length: int, samples: int, seed: int, split: str) -> None:
        super().__init__(np.full(samples, length))
        self.pad, self.separator = dictionary.pad(), dictionary.index(SEPARATOR)
        self.symbols = len(dictionary) - self.separator - 1
        self.length, self.seed = length, seed
        self.split, self.epoch = split, 1

    def __getitem__(self, index: int) -> dict[str, Any]:
        epoch = self.epoch if self.split == "train" else 0
        generator = np.random.default_rng((self.seed, SPLITS.index(self.split), epoch, index))
        lengths = copied_lengths(self.length)
        n = int(generator.integers(lengths.start, lengths.stop))
        s = torch.from_numpy(generator.integers(1, self.symbols + 1, n)) + self.separator
        whole = torch.cat([s, torch.tensor([self.separator]), s])
        target = whole[1:].clone()
        target[: n - 1] = self.pad
        return {"id": index, "source": whole[:-1], "target": target}

    def set_epoch(self, epoch: int) -> None:
        """The next sequences are those of `epoch`."""
        self.epoch = epoch

    @property
    def can_reuse_epoch_itr_across_epochs(self) -> bool:
        """Training has new sequences in every epoch."""
        return self.split != "train"

    def collated(self, samples: list[dict[str, Any]]) -> dict[str, Any]:
        """See `WholeRowsDataset.collated`, padding at the end; `ntokens` are the targets that count."""
        source, target = (
            data_utils.collate_tokens([sample[key] for sample in samples], self.pad)
            for key in ("source", "target")
        )
        lengths = torch.tensor([len(sample["source"]) for sample in samples])
        return {
            "net_input": {"src_tokens": source, "src_lengths": lengths},
            "target": target,
            "ntokens": int(target.ne(self.pad).sum()),
        }


def prompts(sample: dict[str, Any], pad: int) -> tuple[Tensor, Tensor]:
    """The prompt of free-running generation: `s, separator` with padding behind `(B, T)`, and n `(B,)`."""
    n = sample["target"].ne(pad).sum(1) - 1
    source = sample["net_input"]["src_tokens"][:, : int(n.max()) + 1]
    behind = torch.arange(source.shape[1], device=source.device) > n[:, None]
    return source.masked_fill(behind, pad), n
