"""Rotary positions (Su et al. 2021) in the layout of halves."""

import torch
from torch import Tensor

from causal_linear_attention.chunked import accumulation_dtype


def rotate_halves(x: Tensor, positions: Tensor) -> Tensor:
    """Channels i and i + s/2 turned by the angle `position 10000^(-i / (s/2))`, computed in float32 at least.

    Args:
        x: `(..., N, s)`, s even.
        positions: integers that broadcast to `(..., N)`.

    Returns:
        x's shape and dtype.
    """
    wide = x.to(accumulation_dtype(x.dtype))
    half = x.shape[-1] // 2
    steps = torch.arange(half, dtype=wide.dtype, device=x.device)
    angles = positions.to(wide.dtype).unsqueeze(-1) * 10000.0 ** (-steps / half)
    cos, sin = angles.cos(), angles.sin()
    first, second = wide[..., :half], wide[..., half:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1).to(x.dtype)
