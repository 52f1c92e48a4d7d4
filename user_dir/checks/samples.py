"""Samples that fairseq would leave out of an evaluation without a word."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ..errors import UserError


def check_sample_lengths(
    sizes: np.ndarray, context: int, max_tokens: int | None, max_positions: int | None
) -> None:
    """UserError where samples of these `sizes` in tokens, `context` ones before each, would be left out."""
    if not len(sizes):
        raise UserError("the split holds no sample; prepare the data again")
    longest = int(sizes.max()) + context
    if max_positions is not None and longest > max_positions:
        count = int((sizes + context > max_positions).sum())
        raise UserError(
            f"{count:,} of {len(sizes):,} samples are longer than the {max_positions} positions of the model "
            f"(the longest has {longest} tokens) and would be left out; give --sample-break-mode none and "
            f"--tokens-per-sample {max_positions} or less"
        )
    if max_tokens is not None and int(sizes.max()) > max_tokens:
        raise UserError(
            f"--max-tokens is {max_tokens}, less than the {int(sizes.max())} tokens of the longest sample; "
            "raise it, or lower --tokens-per-sample"
        )


class NotEmpty:
    """An iterator over batches that ends in a UserError if no batch held a sample."""

    def __init__(self, batches: Any) -> None:
        self.batches = batches
        self.n = getattr(batches, "n", 0)

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        found = False
        for batch in self.batches:
            found = found or "net_input" in batch
            yield batch
        if not found:
            raise UserError("not one token was evaluated; are there more shards (--num-shards) than batches?")
