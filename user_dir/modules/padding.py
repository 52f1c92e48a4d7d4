"""Padding on the left: rolled away where tokens enter a model, rolled back where they leave."""

import torch
from torch import Tensor


def leading_padding(tokens: Tensor, padding_idx: int) -> Tensor | None:
    """How many padding tokens each row `(B, N)` starts with, `(B,)`; None when no row does."""
    padding = tokens.eq(padding_idx)
    if tokens.shape[1] == 0 or not padding[:, 0].any():
        return None
    return padding.long().cumprod(dim=1).sum(dim=1)


def roll_rows(x: Tensor, shift: Tensor) -> Tensor:
    """Rows of `x: (B, N, ...)` moved to the left by `shift: (B,)`, what falls out coming in on the right."""
    length = x.shape[1]
    index = (torch.arange(length, device=x.device) + shift[:, None]) % length
    index = index.view(*index.shape, *([1] * (x.dim() - 2)))
    return x.gather(1, index.expand_as(x))
