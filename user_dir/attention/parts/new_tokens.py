"""The tokens of one decoding step: their positions, computed once for all layers."""

import torch
from torch import Tensor


class NewTokens:
    """The next T tokens of known prefixes.

    Args:
        padding_mask: `(B, T)`, True at padding, which follows the real tokens; None without padding.
        start: `(B,)`, how many real tokens each row has had before.
        count: T.

    Attributes:
        end: `(B,)`, how many real tokens each row has had with these.
        positions: `(B, T)`, the first token of a row being 0.
    """

    def __init__(self, padding_mask: Tensor | None, start: Tensor, count: int) -> None:
        self.padding_mask, self.start, self.count = padding_mask, start, count
        self.end = start + (count if padding_mask is None else count - padding_mask.sum(1))
        first = start.unsqueeze(1)
        self.positions = first if count == 1 else first + torch.arange(count, device=start.device)
        self._in_blocks: dict[int, tuple[Tensor, Tensor]] = {}

    def places(self, size: int) -> Tensor:
        """`(B, T)`, counted from the start of the block of `size` positions that is begun."""
        return self._of_blocks(size)[0]

    def visible(self, size: int) -> Tensor:
        """For one new token a row: the places of its block up to its own, `(B, 1, 1, size)`."""
        return self._of_blocks(size)[1]

    def _of_blocks(self, size: int) -> tuple[Tensor, Tensor]:
        if size not in self._in_blocks:
            ahead = torch.arange(max(size, self.count), device=self.start.device)
            first = (self.start % size).unsqueeze(1)
            places = first if self.count == 1 else first + ahead[: self.count]
            self._in_blocks[size] = places, (ahead[:size] <= first)[:, None, None]
        return self._in_blocks[size]
