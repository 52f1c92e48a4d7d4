"""LRPE: rotary positions behind a reflection, from TransNormer's code (`urpe`); the paper has none."""

import torch
from torch import Tensor, nn


class LRPE(nn.Module):
    """Turns every pair of channels by an angle that grows with the position, after a fixed reflection.

        y = x - 2 (x . v) v,   (y[2j], y[2j+1]) rotated by m theta_j

    The rotations of position m and n cancel in `q_m . k_n` up to m - n, so positions enter a linear
    attention through q and k alone. `theta` is learned and starts at 10000^(-2j/d); `v` is a random unit
    vector that is saved but never trained. An odd last channel is reflected but not rotated. Angles and
    rotation are computed in float32.

    Args:
        head_dim: channels d of one head; shared by all heads and by q and k.
    """

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        self.pairs = head_dim // 2
        exponents = torch.arange(self.pairs, dtype=torch.float32) * (-2.0 / head_dim)
        self.theta = nn.Parameter((10000.0**exponents).view(1, 1, -1))
        direction = torch.randn(head_dim)
        self.v = nn.Parameter(direction / direction.norm(), requires_grad=False)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """`x: (..., N, d)` at integer `positions` that broadcast to `(..., N)`; returns x's shape, dtype."""
        wide = x if x.dtype == torch.float64 else x.float()
        v, theta = self.v.to(wide.dtype), self.theta.to(wide.dtype).flatten()
        y = wide - 2 * (wide @ v).unsqueeze(-1) * v
        angles = positions.to(wide.dtype).unsqueeze(-1) * theta
        cos, sin = angles.cos(), angles.sin()
        even, odd = y[..., 0 : 2 * self.pairs : 2], y[..., 1 : 2 * self.pairs : 2]
        rotated = torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(-2)
        return torch.cat([rotated, y[..., 2 * self.pairs :]], dim=-1).to(x.dtype)
