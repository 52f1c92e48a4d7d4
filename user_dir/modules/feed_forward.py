"""The position-wise part of a layer: the vanilla two-layer network, or a gated linear unit."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from fairseq.modules import FairseqDropout
from torch import Tensor, nn

from ..errors import check_choice
from .dropout import drops
from .linear_maps import linear_maps


def identity(x: Tensor) -> Tensor:
    """x."""
    return x


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "identity": identity,
    "silu": F.silu,
    "gelu": F.gelu,
    "relu": F.relu,
    "elu": F.elu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
}


def activation(name: str) -> Callable[[Tensor], Tensor]:
    """The function called `name`; raises UserError for an unknown name."""
    check_choice("unknown activation", name, ACTIVATIONS)
    return ACTIVATIONS[name]


def default_glu_width(embed_dim: int) -> int:
    """int(8/3 D): the three matrices of a GLU then weigh as much as the two of a 4 D wide network."""
    return int(8 / 3 * embed_dim)


class GLU(nn.Module):
    """`W3(act(W1 x + b1) * (W2 x + b2)) + b3` (the authors' code, SiLU after the paper's text).

    Args:
        embed_dim: input and output width D.
        width: inner width g.
        activation_fn: name of `act`; "identity" is what the authors' repository computes since
            2022-10-28.
        dropout: on the product.
    """

    def __init__(self, embed_dim: int, width: int, activation_fn: str = "silu", dropout: float = 0.0) -> None:
        super().__init__()
        self.l1 = nn.Linear(embed_dim, width)
        self.l2 = nn.Linear(embed_dim, width)
        self.l3 = nn.Linear(width, embed_dim)
        self.activation = activation(activation_fn)
        self.dropout = FairseqDropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """`(..., N, D)` to `(..., N, D)`."""
        rows = x.flatten(0, -2)
        gate, value = linear_maps(rows, self.l1, self.l2)
        dropped = drops(self.dropout)
        if self.activation is F.silu and not dropped and torch.is_grad_enabled():
            out = _SiluGatedLinear.apply(gate, value, self.l3.weight, self.l3.bias)
        else:
            out = self.l3(self.dropout(self.activation(gate) * value))
        return out.view(x.shape)


class _SiluGatedLinear(torch.autograd.Function):
    """`W (silu(gate) * value) + b` of rows `(N, g)`; the backward pass forms the product again."""

    @staticmethod
    def forward(ctx, gate, value, weight, bias):
        ctx.save_for_backward(gate, value, weight)
        return F.linear(F.silu(gate) * value, weight, bias)

    @staticmethod
    def backward(ctx, grad):
        gate, value, weight = ctx.saved_tensors
        active = F.silu(gate)
        grad_weight = grad.mT @ (active * value).to(grad.dtype)
        inner = grad @ weight.to(grad.dtype)
        if torch.is_grad_enabled():  # for derivatives of higher order, which silu_backward lacks
            share = torch.sigmoid(gate)
            grad_gate = inner * value * share * (1 + gate * (1 - share))
        else:
            grad_gate = torch.ops.aten.silu_backward(inner * value, gate)
        return grad_gate, inner * active, grad_weight, grad.sum(0)


class FeedForward(nn.Module):
    """`W2 act(W1 x + b1) + b2` (Vaswani et al. 2017), under fairseq's names and with its initialisation.

    Args: as for `GLU`.
    """

    def __init__(self, embed_dim: int, width: int, activation_fn: str = "relu", dropout: float = 0.0) -> None:
        super().__init__()
        self.fc1 = nn.Linear(embed_dim, width)
        self.fc2 = nn.Linear(width, embed_dim)
        self.activation = activation(activation_fn)
        self.dropout = FairseqDropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """`(..., D)` to `(..., D)`."""
        return self.fc2(self.dropout(self.activation(self.fc1(x))))
