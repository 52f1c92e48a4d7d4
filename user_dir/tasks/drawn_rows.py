"""Rows that are drawn on the fly; only some of their targets count."""

from typing import Any

import numpy as np
import torch
from fairseq.data import data_utils

from .whole_rows import WholeRowsDataset

SPLITS = ("train", "valid", "test")


class DrawnDataset(WholeRowsDataset):
    """Rows that depend on seed, split, epoch (in training) and their number only.

    A subclass defines `draw`. Targets that do not count are padding.

    Args:
        length: tokens of a row.
        samples: rows in an epoch.
        pad: the index of the padding.
        seed: of all splits.
        split: one of `SPLITS`.
    """

    def __init__(self, length: int, samples: int, pad: int, seed: int, split: str) -> None:
        super().__init__(np.full(samples, length))
        self.length, self.pad, self.seed = length, pad, seed
        self.split, self.epoch = split, 1

    def draw(self, generator: np.random.Generator) -> dict[str, torch.Tensor]:
        """One row: its `source` and `target`."""
        raise NotImplementedError

    def __getitem__(self, index: int) -> dict[str, Any]:
        epoch = self.epoch if self.split == "train" else 0
        generator = np.random.default_rng((self.seed, SPLITS.index(self.split), epoch, index))
        return {"id": index, **self.draw(generator)}

    def set_epoch(self, epoch: int) -> None:
        """The next rows are those of `epoch`."""
        self.epoch = epoch

    @property
    def can_reuse_epoch_itr_across_epochs(self) -> bool:
        """Training has new rows in every epoch."""
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
