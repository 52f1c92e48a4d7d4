"""The position-wise part of a layer: the vanilla two-layer network, or a gated linear unit."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from fairseq.modules import FairseqDropout
from torch import Tensor, nn

from causal_linear_attention import fused
from causal_linear_attention.decoding import gated_step, linear_step
from causal_linear_attention.transforms import transformed

from ..errors import check_choice
from .dropout import drops
from .linear_maps import JoinsMaps, aligned_linear, is_plain
from .norms import is_plain_rms


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


class GLU(JoinsMaps):
    """`W3(act(W1 x + b1) * (W2 x + b2)) + b3` (the authors' code, SiLU after the paper's text).

    Args:
        embed_dim: input and output width D.
        width: inner width g.
        activation_fn: name of `act`; "identity" as in the authors' repository since 2022-10-28.
        dropout: on the product.
        bias: whether the three maps have biases.

    Attributes:
        kernels: whether kernels compute the product where they run; see `choose_kernels`.
    """

    maps = ("l1", "l2")
    aligned = True
    kernels = True

    def __init__(
        self,
        embed_dim: int,
        width: int,
        activation_fn: str = "silu",
        dropout: float = 0.0,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.l1 = nn.Linear(embed_dim, width, bias=bias)
        self.l2 = nn.Linear(embed_dim, width, bias=bias)
        self.l3 = nn.Linear(width, embed_dim, bias=bias)
        self.activation = activation(activation_fn)
        self.dropout = FairseqDropout(dropout)
        self.join_maps()

    def residual_step(self, x: Tensor, norm: nn.Module) -> Tensor | None:
        """`x + self(norm(x))` of the few rows `x: (N, B, D)` by the kernels; None if they do not apply."""
        joined = self.joined_parameters() if self.kernels and self._multiplies() else None
        if joined is None:
            return None
        inputs, eps = (x, norm.eps) if is_plain_rms(norm) else (norm(x), None)
        if eps is not None and self.activation is F.silu:
            return gated_step(x, eps, *joined, self.l3.weight, self.l3.bias)
        gate, value = linear_step(inputs, eps, *joined, None).chunk(2, -1)
        return linear_step(self.activation(gate) * value, None, self.l3.weight, self.l3.bias, x)

    def _fuses(self) -> bool:
        return self.activation is F.silu and self._multiplies()

    def _multiplies(self) -> bool:
        """Whether nothing but a product is between the maps and the last one, which its weights define."""
        return is_plain(self.l3) and not drops(self.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """`(..., N, D)` to `(..., N, D)`."""
        rows = x.flatten(0, -2)
        if self._fuses() and self.plain_maps():
            out = _gated_linear(self.joined_maps(rows), self.l3, self.kernels)
        else:
            gate, value = self.separate_maps(rows)
            out = self.l3(self.dropout(self.activation(gate) * value))
        return out.view(x.shape)


def _gated_linear(inputs: Tensor, output: nn.Linear, kernels: bool) -> Tensor:
    """`output(silu(gate) * value)` of rows of gates and values side by side."""
    if torch.is_grad_enabled():
        return _SiluGatedLinear.apply(inputs, output.weight, output.bias, kernels)
    if kernels and fused.runs(inputs):
        return output(fused.gated(inputs))
    gate, value = inputs.chunk(2, -1)
    return output(F.silu(gate) * value)


class _SiluGatedLinear(torch.autograd.Function):
    """`W (silu(gate) * value) + b` of rows `(N, 2 g)`; the backward pass forms the product again."""

    @staticmethod
    def forward(ctx, inputs, weight, bias, kernels):
        ctx.save_for_backward(inputs, weight)
        ctx.kernels = kernels
        if kernels and fused.runs(inputs):
            return F.linear(fused.gated(inputs), weight, bias)
        gate, value = inputs.chunk(2, -1)
        return F.linear(F.silu(gate) * value, weight, bias)

    @staticmethod
    def backward(ctx, grad):
        inputs, weight = ctx.saved_tensors
        second = torch.is_grad_enabled() or transformed(grad)  # silu_backward lacks derivatives
        multiply = F.linear if second else aligned_linear
        inner = multiply(grad, weight.to(grad.dtype).T)
        if second:
            gate, value = inputs.chunk(2, -1)
            share = torch.sigmoid(gate)
            active = gate * share
            grad_gate = inner * value * share * (1 + gate * (1 - share))
            grad_inputs, product = torch.cat([grad_gate, inner * active], -1), active * value
        elif ctx.kernels and fused.runs(inputs):
            grad_inputs, product = fused.gated_backward(inner.to(inputs.dtype), inputs)
        else:
            gate, value = inputs.chunk(2, -1)
            active = F.silu(gate)
            grad_gate = torch.ops.aten.silu_backward(inner * value, gate)
            grad_inputs, product = torch.cat([grad_gate, inner * active], -1), active * value
        grad_bias = grad.sum(0) if ctx.needs_input_grad[2] else None
        return grad_inputs, multiply(grad.T, product.to(grad.dtype).T).contiguous(), grad_bias, None


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
