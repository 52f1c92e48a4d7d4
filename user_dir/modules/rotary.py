"""Rotary positions (Su et al. 2021), by pairs of channels or in the layout of halves."""

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


def turns_by(angles: Tensor) -> Tensor:
    """Cosines and sines `(..., 2)` of `angles: (...)`, for `rotate_pairs`."""
    return torch.stack([angles.cos(), angles.sin()], -1)


def rotate_pairs(x: Tensor, turns: Tensor, back: bool = False) -> Tensor:
    """Channels 2j and 2j + 1 rotated, or rotated back; an odd last channel as it is.

    A product of complex numbers is one kernel; a compiler has none for them and fuses real arithmetic.

    Args:
        x: `(..., N, d)`.
        turns: `(..., N, d // 2, 2)` of x's dtype, see `turns_by`.
    """
    if x.shape[-1] < 2:
        return x
    if torch.compiler.is_compiling():
        (a, b), (cos, sin) = pairs(x).unbind(-1), turns.unbind(-1)
        sin = -sin if back else sin
        rotated = torch.stack([a * cos - b * sin, a * sin + b * cos], -1)
    else:
        factors = torch.view_as_complex(turns)
        numbers = torch.view_as_complex(pairs(x).contiguous())
        rotated = torch.view_as_real(numbers * (factors.conj() if back else factors))
    rotated = rotated.flatten(-2)
    return torch.cat([rotated, x[..., -1:]], -1) if x.shape[-1] % 2 else rotated


def pairs(x: Tensor) -> Tensor:
    """`(..., d)` as `(..., d // 2, 2)`, without an odd last channel."""
    count = x.shape[-1] // 2
    return x[..., : 2 * count].unflatten(-1, (count, 2))
