"""Attention from queries, keys and values side by side, by the kernels of `causal_linear_attention.fused`.

`qkv: (N, B, 3 D)` is the matrix product of all three projections; neither heads nor gradients are copied out
of it. Without kernels, mechanisms take q, k and v apart; that path also gives the second derivatives.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from causal_linear_attention import fused
from causal_linear_attention.chunked import without_autocast
from causal_linear_attention.transforms import transformed

from ...modules import LRPE
from ...modules.lrpe import rotations, turn_both
from .block_diagonal import attend_in_blocks, relu_weights
from .blocks import masked_softmax
from .features import FEATURE_MAPS


def features(
    qkv: Tensor, heads: int, feature_map: str | None, lrpe: LRPE | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries and keys through a feature map and LRPE, values as they are, each `(B, H, N, d)`."""
    theta, direction, scale = _of(lrpe)
    if torch.is_grad_enabled() and (qkv.requires_grad or _trains(theta)):
        return _Features.apply(qkv, theta, direction, heads, feature_map, scale)
    q, k = fused.features(qkv, direction, theta, heads, fused.MAPS[feature_map], scale)
    return q, k, _apart(qkv, heads)[2]


def blocks(
    qkv: Tensor,
    heads: int,
    lrpe: LRPE | None,
    padding_mask: Tensor | None,
    *,
    size: int,
    causal: bool,
    softmax: bool,
    dropout: float,
) -> Tensor:
    """Attention inside blocks of `size` positions, with LRPE inside them, `(N, B, D)`; see `block_diagonal`.

    Without LRPE scores are `q k^T / sqrt(d)`. `dropout` is a probability, with which weights are dropped.
    """
    theta, direction, scale = _of(lrpe, (qkv.shape[2] // 3 // heads) ** -0.25)
    options = heads, size, scale, causal, softmax, padding_mask
    seed = fused.new_seed(qkv.device) if dropout else None
    if torch.is_grad_enabled() and (qkv.requires_grad or _trains(theta)):
        return _Blocks.apply(qkv, theta, direction, options, seed, dropout)
    return fused.blocks(qkv, direction, theta, *options, seed, dropout)


def _of(lrpe: LRPE | None, scale: float = 1.0) -> tuple[Tensor | None, Tensor | None, float]:
    return (None, None, scale) if lrpe is None else (lrpe.theta, lrpe.v, lrpe.scale)


def _trains(theta: Tensor | None) -> bool:
    return theta is not None and theta.requires_grad


def _apart(qkv: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Views `(B, H, N, d)`."""
    return qkv.unflatten(2, (3, heads, -1)).permute(2, 1, 3, 0, 4).unbind(0)


def _turned(q, k, theta, direction, scale: float, size: int | None) -> tuple[Tensor, Tensor]:
    if theta is None:
        return q * scale, k * scale
    places = torch.arange(q.shape[2], device=q.device)
    places = places if size is None else places % size
    return turn_both(q, k, rotations(theta, direction, scale, places, q.dtype))


def _differentiable(run: Callable, qkv: Tensor, theta: Tensor | None, grads) -> tuple[Tensor, Tensor | None]:
    """The gradients of qkv and theta with their own graph, for derivatives of higher order."""
    with torch.enable_grad(), without_autocast(qkv.device):
        inputs = [x.view_as(x) for x in (qkv, theta) if x is not None]
        wanted = [x for x in inputs if x.requires_grad]
        found = iter(torch.autograd.grad(run(*inputs), wanted, grads, create_graph=True, allow_unused=True))
    found = [next(found) if x is not None and x.requires_grad else None for x in (qkv, theta)]
    return found[0], found[1]


def _like(theta: Tensor | None, grad: Tensor) -> Tensor | None:
    if theta is None:
        return None
    grad = grad if grad.dim() == 1 else grad.sum(0, dtype=torch.float64)
    return grad.view(theta.shape).to(theta.dtype)


class _Features(torch.autograd.Function):
    @staticmethod
    def forward(ctx, qkv, theta, direction, heads, feature_map, scale):
        ctx.save_for_backward(qkv, theta, direction)
        ctx.heads, ctx.map, ctx.scale = heads, feature_map, scale
        q, k = fused.features(qkv, direction, theta, heads, fused.MAPS[feature_map], scale)
        return q, k, _apart(qkv, heads)[2]

    @staticmethod
    def backward(ctx, *grads):
        qkv, theta, direction = ctx.saved_tensors
        if torch.is_grad_enabled() or transformed(*grads):

            def run(qkv, theta=None):
                q, k, v = _apart(qkv, ctx.heads)
                if ctx.map is not None:
                    q, k = FEATURE_MAPS[ctx.map](q), FEATURE_MAPS[ctx.map](k)
                return *_turned(q, k, theta, direction, ctx.scale, None), v

            return *_differentiable(run, qkv, theta, grads), None, None, None, None
        grad, grad_theta = fused.features_backward(
            *grads, qkv, direction, theta, ctx.heads, fused.MAPS[ctx.map], ctx.scale
        )
        return grad, _like(theta, grad_theta), None, None, None, None


class _Blocks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, qkv, theta, direction, options, seed, dropout):
        *ctx.options, padding = options
        ctx.save_for_backward(qkv, theta, direction, padding, seed)
        ctx.dropout = dropout
        return fused.blocks(qkv, direction, theta, *options, seed, dropout)

    @staticmethod
    def backward(ctx, grad):
        qkv, theta, direction, padding, seed = ctx.saved_tensors
        heads, size, scale, causal, softmax = ctx.options
        if torch.is_grad_enabled() or transformed(grad):

            def weigh(scores, visible):
                weights = (masked_softmax if softmax else relu_weights)(scores, visible)
                if seed is None:
                    return weights
                return weights * _factors(seed, ctx.dropout, weights, qkv.shape[0])

            def run(qkv, theta=None):
                q, k, v = _apart(qkv, heads)
                q, k = _turned(q, k, theta, direction, scale, size)
                out = attend_in_blocks(q, k, v, padding, size=size, causal=causal, weigh=weigh)
                return out.permute(2, 0, 1, 3).flatten(2)

            return *_differentiable(run, qkv, theta, grad), None, None, None, None
        grad, grad_theta = fused.blocks_backward(
            grad, qkv, direction, theta, *ctx.options, padding, seed, ctx.dropout
        )
        return grad, _like(theta, grad_theta), None, None, None, None


def _factors(seed: Tensor, p: float, weights: Tensor, length: int) -> Tensor:
    """The factors by which the kernels multiply `weights: (B, H, blocks, size, size)`."""
    batch, heads, count, size, _ = weights.shape
    rows = fused.dropout_factors(seed, p, batch * heads * length, size, weights.dtype)
    rows = rows.view(batch, heads, length, size)
    return torch.nn.functional.pad(rows, (0, 0, 0, count * size - length)).unflatten(2, (count, size))
