"""Causal linear attention in plain PyTorch: O(N (D M + C (D + M))) time, any device, any dtype.

The sequence is cut into chunks of C positions. Inside a chunk the product is quadratic (C is small),
across chunks it goes through the running (D, M) state:

    out_chunk = tril(q k^T) v + q S,   S <- S + k^T v

Several chunks form a segment that is computed with batched products; only segments are looped over,
so that the temporary memory is that of one segment whatever N is. Products accumulate in float32
(float64 for float64 inputs). The gradients are causal linear attentions themselves, forwards for q and
backwards in time for k and v, so nothing but the inputs is kept for the backward pass and derivatives of
every order exist.
"""

from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK = 64
SEGMENT = 8 * CHUNK


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """float64 accumulates in float64, every other floating type in float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def without_autocast(device: torch.device) -> AbstractContextManager:
    """Products keep the types they are given: autocast would cast them down and sum in 16 bits."""
    if torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()


def _segment(q: Tensor, k: Tensor, v: Tensor, state: Tensor, reverse: bool) -> tuple[Tensor, Tensor]:
    """One segment `(B, H, L, ·)` in the accumulation dtype, given the state that enters it."""
    length = q.shape[2]
    chunks = -(-length // CHUNK)
    size = min(length, CHUNK)
    padding = (0, 0, 0, chunks * size - length)
    q, k, v = (F.pad(x, padding).unflatten(2, (chunks, size)) for x in (q, k, v))
    products = k.transpose(-2, -1) @ v
    if chunks == 1:
        before, state = state.unsqueeze(2), state + products.squeeze(2)
    elif reverse:
        sums = torch.cumsum(products.flip(2), dim=2).flip(2) + state.unsqueeze(2)
        before, state = torch.cat([sums[:, :, 1:], state.unsqueeze(2)], dim=2), sums[:, :, 0]
    else:
        sums = torch.cumsum(products, dim=2) + state.unsqueeze(2)
        before, state = torch.cat([state.unsqueeze(2), sums[:, :, :-1]], dim=2), sums[:, :, -1]
    scores = q @ k.transpose(-2, -1)
    scores = scores.triu() if reverse else scores.tril()
    out = scores @ v.nan_to_num(0.0, 0.0, 0.0) + q @ before + _spread(v, reverse)
    return out.flatten(2, 3)[:, :, :length], state


def _spread(v: Tensor, reverse: bool) -> Tensor:
    """NaN from the first position of a chunk on at which v is not finite, else zero.

    The zeros above the diagonal of the scores would carry a NaN to earlier positions too (0 * NaN is NaN),
    so the product is taken without such values and they are put back where they belong.
    """
    zeros = v * 0.0
    return zeros.flip(-2).cumsum(-2).flip(-2) if reverse else zeros.cumsum(-2)


def _forward(q: Tensor, k: Tensor, v: Tensor, initial_state: Tensor, reverse: bool) -> tuple[Tensor, Tensor]:
    """`out` in the inputs' dtype and the final state; `reverse` sums over later positions instead."""
    length, dtype, state = q.shape[2], initial_state.dtype, initial_state
    starts = list(range(0, length, SEGMENT))
    pieces = []
    for start in reversed(starts) if reverse else starts:
        # A narrow of each input, converted here, keeps the float32 copies as short as a segment.
        parts = (x.narrow(2, start, min(SEGMENT, length - start)).to(dtype) for x in (q, k, v))
        with without_autocast(q.device):
            piece, state = _segment(*parts, state, reverse)
        pieces.append(piece.to(v.dtype))
    if not pieces:
        return torch.zeros_like(v), state.clone()
    pieces = pieces[::-1] if reverse else pieces
    return (pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=2)), state


class ChunkedCausalLinearAttention(torch.autograd.Function):
    """`(q, k, v, initial_state, reverse) -> (out, final_state)`, differentiable in the four tensors."""

    @staticmethod
    def forward(ctx, q, k, v, initial_state, reverse):
        ctx.save_for_backward(q, k, v, initial_state)
        ctx.reverse = reverse
        return _forward(q, k, v, initial_state, reverse)

    @staticmethod
    def backward(ctx, grad_out, grad_state):
        q, k, v, state = ctx.saved_tensors
        apply, reverse = ChunkedCausalLinearAttention.apply, ctx.reverse
        grad_q = grad_k = grad_v = grad_initial = None
        if ctx.needs_input_grad[0]:
            grad_q = apply(grad_out, v, k, state.transpose(-2, -1), reverse)[0]
        if ctx.needs_input_grad[1]:
            grad_k = apply(v, grad_out, q, grad_state.transpose(-2, -1), not reverse)[0]
        if ctx.needs_input_grad[2] or ctx.needs_input_grad[3]:
            grad_v, grad_initial = apply(k, q, grad_out, grad_state, not reverse)
        return grad_q, grad_k, grad_v, grad_initial, None


def chunked(q: Tensor, k: Tensor, v: Tensor, initial_state: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Causal linear attention of `q, k: (B, H, N, D)`, `v: (B, H, N, M)` in linear time and memory.

    Returns `out: (B, H, N, M)` in v's dtype and the final state `(B, H, D, M)` in the accumulation dtype.
    """
    if initial_state is None:
        shape = (*q.shape[:2], q.shape[-1], v.shape[-1])
        initial_state = q.new_zeros(shape, dtype=accumulation_dtype(q.dtype))
    return ChunkedCausalLinearAttention.apply(q, k, v, initial_state, False)


def normalized(
    run, q: Tensor, k: Tensor, v: Tensor, eps: float, initial_state: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Numerator and denominator from one pass of `run` over v with a column of ones."""
    wide = accumulation_dtype(q.dtype)
    # float32 out of the pass: a denominator rounded to 8 bits would cost every output its precision.
    ones = F.pad(v.to(wide), (0, 1), value=1.0)
    sums, state = run(q.to(wide), k.to(wide), ones, initial_state)
    return (sums[..., :-1] / (sums[..., -1:] + eps)).to(v.dtype), state
