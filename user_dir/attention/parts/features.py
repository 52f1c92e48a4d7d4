"""Feature maps of linear attention, by the name a configuration gives them.

1 + elu is written with `exp` of the negative part, so that it keeps its precision where exp(x) is small. The
derivative of both is that of exp there, and their own: that of `F.elu` breaks under torch.compile for the
strided views that heads are (torch 2.13: its strides there are not those the compiler was told).
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor


class _Elu(torch.autograd.Function):
    """elu plus `offset`, 0 or 1; keeps x alone for the backward pass."""

    @staticmethod
    def forward(ctx, x, offset):
        ctx.save_for_backward(x)
        return _elu(x, offset)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * torch.exp(x.clamp(max=0)), None


def _elu(x: Tensor, offset: int) -> Tensor:
    return F.relu(x) + torch.exp(x.clamp(max=0)) if offset else F.elu(x)


def _differentiable(x: Tensor, offset: int) -> Tensor:
    return _Elu.apply(x, offset) if torch.is_grad_enabled() and x.requires_grad else _elu(x, offset)


def elu(x: Tensor) -> Tensor:
    """x where positive, else exp(x) - 1; x's shape and dtype."""
    return _differentiable(x, 0)


def one_plus_elu(x: Tensor) -> Tensor:
    """1 + x where positive, else exp(x); x's shape and dtype."""
    return _differentiable(x, 1)


FEATURE_MAPS: dict[str, Callable[[Tensor], Tensor]] = {"elu": elu, "1+elu": one_plus_elu}
