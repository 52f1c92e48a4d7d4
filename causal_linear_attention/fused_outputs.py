"""Empty outputs of the steps of `fused.py`: its fake kernels return them, and Triton fills them."""

import torch
from torch import Tensor

from .chunked import accumulation_dtype

_ALIGNED_ROWS = 16  # as in csrc/fused.h


def aligned_rows(like: Tensor, rows: int, width: int) -> Tensor:
    """An empty `(rows, width)` tensor whose rows begin at multiples of 16 numbers.

    Matrix products of float32 write such rows up to 1.5 times as fast on CPUs; on GPUs half precision needs
    them for its fast products.
    """
    room = -(-width // _ALIGNED_ROWS) * _ALIGNED_ROWS
    out = like.new_empty(rows, room)
    return out if room == width else out[:, :width]


def contiguous(x: Tensor) -> Tensor:
    """Like x, in the order of its dimensions."""
    return torch.empty_like(x, memory_format=torch.contiguous_format)


POSITIONS_OF_PART = 16  # as in csrc/cuda/fused.cu


def parts_of_theta(qkv: Tensor, theta: Tensor | None, heads: int, size: int) -> Tensor:
    """Shares of theta's gradient for parts of `size` positions, `(parts, d // 2)`; empty without theta."""
    parts = 0 if theta is None else -(-qkv.shape[0] // size) * qkv.shape[1] * heads
    return qkv.new_empty(parts, 0 if theta is None else theta.numel(), dtype=torch.float32)


def _gradient_of_theta(qkv: Tensor, theta: Tensor | None, heads: int, size: int) -> Tensor:
    if theta is None:
        return qkv.new_empty(0, dtype=accumulation_dtype(qkv.dtype))
    if qkv.device.type == "cuda":
        return parts_of_theta(qkv, theta, heads, size)
    return qkv.new_empty(theta.numel(), dtype=accumulation_dtype(theta.dtype))


def residual(x, y, seed, p, eps, norm, keep):
    total = contiguous(x) if y is not None and keep else x.new_empty(0)
    root = x.new_empty(x.shape[:-1].numel() if norm else 0, dtype=accumulation_dtype(x.dtype))
    return total, contiguous(x) if norm else x.new_empty(0), root


def residual_backward(grad_sum, grad_out, out, root, seed, p, eps):
    like = grad_sum if grad_out is None else grad_out
    return contiguous(like), like.new_empty(0) if seed is None else contiguous(like)


def gated(inputs):
    return inputs.new_empty(inputs.shape[0], inputs.shape[1] // 2)


def gated_backward(grad, inputs):
    return aligned_rows(inputs, *inputs.shape), inputs.new_empty(inputs.shape[0], inputs.shape[1] // 2)


def features(qkv, direction, theta, heads, map, scale):
    length, batch, width = qkv.shape
    shape = batch, heads, length, width // 3 // heads
    return qkv.new_empty(shape), qkv.new_empty(shape)


def features_backward(grad_q, grad_k, grad_v, qkv, direction, theta, heads, map, scale):
    return contiguous(qkv), _gradient_of_theta(qkv, theta, heads, POSITIONS_OF_PART)


def blocks(qkv, direction, theta, heads, size, scale, causal, softmax, padding, seed, p):
    return qkv.new_empty(*qkv.shape[:2], qkv.shape[2] // 3)


def blocks_backward(grad, qkv, direction, theta, heads, size, scale, causal, softmax, padding, seed, p):
    return contiguous(qkv), _gradient_of_theta(qkv, theta, heads, size)
