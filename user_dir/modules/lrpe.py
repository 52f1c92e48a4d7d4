"""LRPE: rotary positions behind a reflection, from TransNormer's code (`urpe`); the paper has none."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from causal_linear_attention.chunked import accumulation_dtype, without_autocast
from causal_linear_attention.transforms import in_transform

from .rotary import pairs, rotate_pairs, turns_by


class Rotations(NamedTuple):
    """The rotation of vectors at some positions, computed once for queries and keys.

    `mirror` reflects and scales, see `_mirror`; `turns: (..., N, d // 2, 2)` are cosines and sines of the
    angles. `angles: (..., N, d // 2)`, float64, lead to theta's gradient; None where there is none. They are
    `positions: (..., N)` times `theta: (d // 2,)`.
    """

    mirror: Tensor
    turns: Tensor
    angles: Tensor | None
    positions: Tensor
    theta: Tensor

    def at(self, positions: Tensor) -> "Rotations":
        """The rows at `positions: (...)` of a table whose row m is position m."""
        index, shape, angles = positions.flatten(), (*positions.shape, self.turns.shape[-2]), self.angles
        turns = self.turns.index_select(0, index).view(*shape, 2)
        angles = None if angles is None else angles[index].view(shape)
        return self._replace(turns=turns, angles=angles, positions=positions)


class LRPE(nn.Module):
    """Turns every pair of channels by an angle that grows with the position, after a fixed reflection.

        y = x - 2 (x . v) v,   (y[2j], y[2j+1]) rotated by m theta_j

    The rotations of position m and n cancel in `q_m . k_n` up to m - n, so positions enter a linear
    attention through q and k alone. `theta` is learned and starts at 10000^(-2j/d); `v` is a random unit
    vector that is saved but never trained. An odd last channel is reflected but not rotated. Angles are
    computed in float64, so that they are exact at any position; the rotation, a product of complex numbers,
    in float32 at least. The backward pass needs the output, which the attention keeps anyway.

    Args:
        head_dim: channels d of one head; shared by all heads and by q and k.
        scale: factor of the result.
    """

    def __init__(self, head_dim: int, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale
        exponents = torch.arange(head_dim // 2, dtype=torch.float32) * (-2.0 / head_dim)
        self.theta = nn.Parameter((10000.0**exponents).view(1, 1, -1))
        direction = torch.randn(head_dim)
        self.v = nn.Parameter(direction / direction.norm(), requires_grad=False)
        self._cache: dict[str, tuple] = {}

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """`x: (..., N, d)` at integer `positions` that broadcast to `(..., N)`; returns x's shape, dtype."""
        return turn(x, self.rotations(positions, x.dtype))

    def rotations(self, positions: Tensor, dtype: torch.dtype) -> Rotations:
        """For vectors of `dtype` at integer `positions` of any shape."""
        constants = self._kept("constants", accumulation_dtype(dtype), self._constants)
        return _rotations(positions, *constants)

    def table(self, length: int, dtype: torch.dtype) -> Rotations:
        """For vectors of `dtype` at positions 0 to `length - 1`; kept in evaluation until theta changes."""

        def rows(dtype: torch.dtype) -> Rotations:
            return self.rotations(torch.arange(length, device=self.theta.device), dtype)

        table = self._kept("table", accumulation_dtype(dtype), rows, length)
        return table if len(table.turns) == length else table._replace(turns=table.turns[:length])

    def angles(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The direction v `(d,)` in `dtype`, and theta `(d // 2,)` in float64."""
        return self._kept("angles", dtype, lambda dtype: (self.v.to(dtype), self.theta.double().flatten()))

    def train(self, mode: bool = True) -> "LRPE":
        """See `nn.Module.train`; drops cached tables, since `.data` may have changed unnoticed."""
        self._cache.clear()
        return super().train(mode)

    def _constants(self, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        """The reflection, scaled, theta and 1 in float64."""
        return _constants(self.theta, self.v.to(dtype), self.scale)

    def _kept(self, name: str, dtype: torch.dtype, make: Callable, length: int = 0) -> Any:
        """`make(dtype)`, without gradients kept in evaluation and made again when it is too short."""
        if self.training or torch.is_grad_enabled() or torch.compiler.is_compiling() or in_transform():
            return make(dtype)
        made_of = self.theta, self.v
        if any(p.is_inference() for p in made_of):  # which lack a version that counts changes
            return make(dtype)
        key = dtype, *(version(p) for p in made_of)
        kept = self._cache.get(name)
        if kept is None or kept[0] != key or kept[1] < length:
            # Kept with its sources, so that no other tensor gets their addresses.
            self._cache[name] = kept = key, length, make(dtype), [p.detach() for p in made_of]
        return kept[2]


def rotations(
    theta: Tensor, direction: Tensor, scale: float, positions: Tensor, dtype: torch.dtype
) -> Rotations:
    """As `LRPE.rotations` of a module with these parameters."""
    return _rotations(positions, *_constants(theta, direction.to(accumulation_dtype(dtype)), scale))


def _constants(theta: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    return _mirror(v, scale), theta.double().flatten(), v.new_ones((), dtype=torch.float64)


def _rotations(positions: Tensor, mirror: Tensor, theta: Tensor, one: Tensor) -> Rotations:
    angles = positions.unsqueeze(-1) * theta
    constant = angles.detach()
    if torch.compiler.is_compiling():
        turns = turns_by(constant)
    else:
        turns = torch.view_as_real(torch.polar(one, constant))
    turns, angles = turns.to(mirror.dtype), angles if angles.requires_grad else None
    return Rotations(mirror, turns, angles, positions, theta)


def version(p: Tensor) -> tuple:
    """Detects changes of p, except through `.data`."""
    return p.data_ptr(), p.device, p._version


def turn(x: Tensor, rotations: Rotations) -> Tensor:
    """`x: (..., N, d)` reflected and rotated; x's shape and dtype."""
    if torch.is_grad_enabled() and (x.requires_grad or rotations.angles is not None):
        return _Turn.apply(x, *rotations)
    return _turn(x, rotations.mirror, rotations.turns)


def turn_both(q: Tensor, k: Tensor, rotations: Rotations) -> tuple[Tensor, Tensor]:
    """`turn` of queries and keys alike `(B, H, N, d)`; those of single tokens in one go."""
    if q.shape[2] == 1 and not torch.is_grad_enabled():
        return turn(torch.stack([q, k]), rotations).unbind(0)
    return turn(q, rotations), turn(k, rotations)


class _Turn(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, mirror, turns, angles, positions, theta):
        out = _turn(x, mirror, turns)
        ctx.save_for_backward(out, mirror, turns, positions, theta)
        ctx.angles = None if angles is None else angles.shape
        return out

    @staticmethod
    def backward(ctx, grad):
        out, mirror, turns, positions, theta = ctx.saved_tensors
        if torch.is_grad_enabled():  # for derivatives of higher order
            turns = turns_by(positions.unsqueeze(-1) * theta).to(mirror.dtype)
        wide, grad_x, grad_angles = grad.to(mirror.dtype), None, None
        if ctx.needs_input_grad[3]:
            # The derivative of a rotated pair (a, b) by its angle is (-b, a).
            a, b = pairs(out.to(mirror.dtype)).unbind(-1)
            grad_a, grad_b = pairs(wide).unbind(-1)
            grad_angles = torch.addcmul(a * grad_b, b, grad_a, value=-1).sum_to_size(ctx.angles)
        if ctx.needs_input_grad[0]:
            grad_x = _reflected(rotate_pairs(wide, turns, back=True), mirror).to(grad.dtype)
        return grad_x, None, None, grad_angles, None, None


def _turn(x: Tensor, mirror: Tensor, turns: Tensor) -> Tensor:
    return rotate_pairs(_reflected(x.to(mirror.dtype), mirror), turns).to(x.dtype)


def _mirror(v: Tensor, scale: float) -> Tensor:
    """`scale (I - 2 v v^T)`, `(d, d)`; while compiling the rows scale, v and 2 scale v of `_reflected`."""
    if torch.compiler.is_compiling():
        return torch.stack([torch.full_like(v, scale), v, 2 * scale * v])
    return (torch.eye(len(v), dtype=v.dtype, device=v.device) - 2 * torch.outer(v, v)) * scale


def _reflected(x: Tensor, mirror: Tensor) -> Tensor:
    """`x mirror`, its own transpose: a product, or a form that a compiler fuses with its surroundings."""
    if torch.compiler.is_compiling():
        scale, v, twice = mirror
        return x * scale - (x * v).sum(-1, keepdim=True) * twice
    with without_autocast(x.device):
        if x.shape[-2] == 1:  # rows without distance in memory: one product
            return (x.reshape(-1, x.shape[-1]) @ mirror).view(x.shape)
        return x @ mirror
