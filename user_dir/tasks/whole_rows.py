"""Shared by tasks that train on whole rows: no row is cut or left out for its length."""

from typing import Any, Optional

import numpy as np
import torch
from fairseq.data import Dictionary, FairseqDataset
from fairseq.tasks import FairseqTask


class WholeRowsTask(FairseqTask):
    """A task that keeps every row; only the model limits their length.

    Attributes:
        dictionary: of source and target; None where rows are not tokens.
    """

    dictionary: Optional[Dictionary] = None

    def filter_indices_by_size(
        self,
        indices: np.ndarray,
        dataset: "WholeRowsDataset",
        max_positions: Optional[int] = None,
        ignore_invalid_inputs: bool = False,
    ) -> np.ndarray:
        """All of them."""
        return indices

    def max_positions(self) -> None:
        """None: only the model limits the length."""
        return None

    @property
    def source_dictionary(self) -> Optional[Dictionary]:
        """See `dictionary`."""
        return self.dictionary

    @property
    def target_dictionary(self) -> Optional[Dictionary]:
        """See `dictionary`."""
        return self.dictionary


class WholeRowsDataset(FairseqDataset):
    """Rows of known sizes, drawn at random in each epoch where `shuffled`.

    Args:
        sizes: `(rows,)`, the tokens of each row for `--max-tokens`.
        shuffled: whether batches are cut from a new order in every epoch.
    """

    def __init__(self, sizes: np.ndarray, shuffled: bool = False) -> None:
        self.sizes, self.shuffled = sizes, shuffled

    def __len__(self) -> int:
        return len(self.sizes)

    def size(self, index: int) -> int:
        """The row's size."""
        return int(self.sizes[index])

    def collater(self, samples: list[dict[str, Any]]) -> dict[str, Any]:
        """A batch; empty for no samples, as fairseq expects."""
        if not samples:
            return {}
        ids = torch.tensor([sample["id"] for sample in samples])
        return {"id": ids, "nsentences": len(samples), **self.collated(samples)}

    def collated(self, samples: list[dict[str, Any]]) -> dict[str, Any]:
        """`net_input`, `target`, and `ntokens`, by which fairseq divides, of one sample or more."""
        raise NotImplementedError

    def num_tokens(self, index: int) -> int:
        """The tokens of a row for `--max-tokens`."""
        return self.size(index)

    def num_tokens_vec(self, indices: np.ndarray) -> np.ndarray:
        """`num_tokens` of several rows."""
        return self.sizes[indices]

    def ordered_indices(self) -> np.ndarray:
        """The order in which batches are cut; where shuffled, a new one per epoch from fairseq's seed."""
        return np.random.permutation(len(self)) if self.shuffled else np.arange(len(self))

    @property
    def can_reuse_epoch_itr_across_epochs(self) -> bool:
        """Shuffled batches are made of other rows in every epoch."""
        return not self.shuffled
