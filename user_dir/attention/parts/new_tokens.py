"""The tokens of one decoding step: their positions, computed once for all layers."""

from collections.abc import Callable, Hashable

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
        self._shared: dict[Hashable, Tensor] = {}

    def shared(self, key: Hashable, make: Callable[[], Tensor]) -> Tensor:
        """`make()`, computed for the first layer that asks with this key."""
        if key not in self._shared:
            self._shared[key] = make()
        return self._shared[key]

    def places(self, size: int) -> Tensor:
        """`(B, T)`, counted from the start of the block of `size` positions that is begun."""

        def places() -> Tensor:
            first = (self.start % size).unsqueeze(1)
            return first + torch.arange(self.count, device=first.device) if self.count > 1 else first

        return self.shared(("places", size), places)

    def visible(self, size: int) -> Tensor:
        """For one new token per row: the places of its block up to its own, `(B, 1, 1, size)`."""

        def visible() -> Tensor:
            ahead = torch.arange(size, device=self.start.device)
            return (ahead <= self.places(size))[:, None, None]

        return self.shared(("visible", size), visible)
