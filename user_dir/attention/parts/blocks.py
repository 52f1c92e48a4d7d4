"""Blocks of positions, sliding windows, and weights over what they see, for attention inside them.

Blocks start at the first token; the last one is filled up, so that any length works.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from causal_linear_attention.chunked import accumulation_dtype


def block_count(length: int, size: int) -> int:
    """How many blocks of `size` positions hold `length` of them."""
    return -(-length // size)


def split_blocks(x: Tensor, size: int, dim: int, value: float = 0.0) -> Tensor:
    """`(..., N, ...)` with N at `dim` to `(..., blocks, size, ...)`; `value` fills the last block."""
    blocks = block_count(x.shape[dim], size)
    if fill := blocks * size - x.shape[dim]:
        x = F.pad(x, [0, 0] * (x.dim() - 1 - dim) + [0, fill], value=value)
    return x.unflatten(dim, (blocks, size))


def block_windows(x: Tensor, size: int, before: int, after: int, dim: int, value: float = 0.0) -> Tensor:
    """Each block of `size` positions with the `before` positions in front of it and `after` behind it.

    Args:
        x: positions at `dim`, which counts from the front.
        size: positions from the start of a block to the next.
        before, after: how far a window reaches over its block.
        dim: the dimension of positions.
        value: fills places without a position (True or False for masks).

    Returns:
        `(..., blocks, before + size + after, ...)`; entry j of window b is position `b size - before + j`.
    """
    length = x.shape[dim]
    fill = block_count(length, size) * size - length
    sides = [0, 0] * (x.dim() - 1 - dim) + [before, fill + after]
    windows = F.pad(x, sides, value=value).unfold(dim, before + size + after, size)
    return windows.movedim(-1, dim + 1)


def join_blocks(x: Tensor, length: int, dim: int) -> Tensor:
    """The reverse of `split_blocks`: `(..., blocks, size, ...)` to `(..., length, ...)`."""
    return x.flatten(dim, dim + 1).narrow(dim, 0, length)


def gather_blocks(x: Tensor, index: Tensor) -> Tensor:
    """Blocks by number, for each row and head.

    Args:
        x: `(B, H, blocks, ...)`.
        index: numbers of blocks, `(B, H, ...)` or a shape that broadcasts to it.

    Returns:
        `(B, H, ..., ...)`: the shape of `index`, then the shape of one block.
    """
    batch, heads, blocks = x.shape[:3]
    index = index.expand(batch, heads, *index.shape[2:])
    first = torch.arange(batch * heads, device=x.device) * blocks
    flat = first.view(batch, heads, *[1] * (index.dim() - 2)) + index
    # Rows of one long table: its gradient is a sum over rows, which index_put's is not.
    return x.flatten(0, 2).index_select(0, flat.flatten()).view(*index.shape, *x.shape[3:])


def masked_softmax(scores: Tensor, visible: Tensor | None) -> Tensor:
    """Softmax over the last dimension where `visible`, in float32 for half precision; scores' dtype.

    Hidden positions weigh exactly 0; a row that sees nothing is finite and meaningless. With None everything
    is visible.
    """
    wide = accumulation_dtype(scores.dtype)
    if visible is None:
        return torch.softmax(scores, dim=-1, dtype=wide).to(scores.dtype)
    hidden = scores.to(wide).masked_fill(~visible, torch.finfo(wide).min)  # the lowest number, not -inf
    return torch.softmax(hidden, dim=-1).to(scores.dtype)
