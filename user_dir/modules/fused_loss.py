"""Cross-entropy of a linear layer with Triton: the logits stay on the chip, in half precision on a GPU.

    loss_i = log sum_w exp(x_i . W_w + b_w) - (x_i . W_t + b_t),     dx = (p - t) W,   dW = (p - t)^T x

The forward pass is one product, of which only three numbers per row and span of words are kept. The backward
pass makes it again for a block of words at a time and writes `p - t` in half precision, which two products of
torch then read: four products in all. dW of a block is one product over all rows, so it is rounded only once;
dx is summed in float32 over the blocks. Nothing is added by atomics: the same inputs give the same bits.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from causal_linear_attention import triton_backend
from causal_linear_attention.chunked import without_autocast

DTYPES = (torch.bfloat16, torch.float16)
SPAN = 4096  # words whose logits one program of the forward pass sums
# What `p - t` is multiplied by, and its products divided by in float32: the smallest probabilities of a large
# vocabulary are below float16's range. A power of two, so nothing is rounded.
SCALE = 4096.0


@dataclass(frozen=True)
class Tiles:
    """Rows, words and columns of a tile, and how a program holds it."""

    rows: int
    words: int
    depth: int
    warps: int
    stages: int

    @property
    def constants(self) -> dict[str, int]:
        """The sizes by the names of the kernels' constants."""
        sizes = {"ROWS": self.rows, "WORDS": self.words, "DEPTH": self.depth}
        return {**sizes, "num_warps": self.warps, "num_stages": self.stages}


LARGE = Tiles(128, 256, 64, warps=8, stages=4)  # 192 of the 227 KiB that a program may share there
SMALL = Tiles(128, 128, 32, warps=8, stages=3)  # 32 of 99 KiB


@cache
def tiles(device: torch.device) -> Tiles:
    """The sizes of tiles that the GPU's shared memory holds."""
    return LARGE if torch.cuda.get_device_capability(device)[0] in (9, 10) else SMALL


def computes(x: Tensor) -> bool:
    """Whether these kernels can compute the loss of the features x."""
    return x.is_cuda and x.dtype in DTYPES and len(x) > 0 and not triton_backend.reason(x.device)


def losses(
    x: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None, ignore_index: int | None, rows: int
) -> Tensor:
    """`(N,)` in float32, zero where ignored, NaN where the target is not a word.

    The arguments are those of `linear_cross_entropy`. The backward pass makes as much of `p - t` at a time as
    takes the memory of the float32 logits of `rows` rows.
    """
    kept = torch.ones_like(target, dtype=torch.bool) if ignore_index is None else target != ignore_index
    return _Fused.apply(x, weight, bias, target.where(kept, -1).int(), kept, rows)


def product(a: Tensor, b: Tensor) -> Tensor:
    """The product of two matrices of half precision on a GPU, in float32."""
    return torch.mm(a, b, out_dtype=torch.float32)


class _Fused(torch.autograd.Function):
    """`(x, weight, bias, target, kept, rows) -> losses`."""

    @staticmethod
    def forward(ctx, x, weight, bias, target, kept, rows):
        x, weight = _dense(x), _dense(weight)
        bias = None if bias is None else bias.contiguous()
        shape = (_parts(len(weight), SPAN), len(x))
        largest, total = (x.new_empty(shape, dtype=torch.float32) for _ in range(2))
        chosen = x.new_full(shape[1:], float("nan"), dtype=torch.float32)
        grid = (_parts(len(x), tiles(x.device).rows), shape[0])
        given = (x, weight, bias, target)
        _launch("sums", grid, *given, largest, total, chosen, len(x), len(weight), SPAN=SPAN)
        highest = largest.amax(0)
        norm = highest + (total * (largest - highest).exp()).sum(0).log()
        ctx.save_for_backward(*given, kept, norm)
        ctx.rows = rows
        return (norm - chosen).where(kept, 0)

    @staticmethod
    def backward(ctx, grad):
        *given, kept, norm = ctx.saved_tensors
        x, weight, bias, _ = given
        unit = grad.abs().max().clamp_min(torch.finfo(grad.dtype).tiny) / SCALE
        scale = (grad / unit).where(kept, 0)
        of_x, of_weight, of_bias = ctx.needs_input_grad[:3]
        grad_x = torch.zeros_like(x, dtype=torch.float32) if of_x else None
        grad_weight = torch.empty_like(weight) if of_weight else None
        grad_bias = torch.empty_like(bias) if of_bias else None
        with without_autocast(x.device):
            for here, errors in _errors(*given, norm, scale, ctx.rows):
                if of_x:
                    grad_x += product(errors, weight[here])
                if of_weight:
                    grad_weight[here] = product(errors.T, x).mul_(unit)
                if of_bias:
                    grad_bias[here] = errors.sum(0, dtype=torch.float32) * unit
        return grad_x.mul_(unit).to(x.dtype) if of_x else None, grad_weight, grad_bias, None, None, None


def _errors(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    norm: Tensor,
    scale: Tensor,
    rows: int,
) -> Iterator[tuple[slice, Tensor]]:
    """Words and their `(p - t) * scale`, block by block in the same memory."""
    tile, words = tiles(x.device), len(weight)
    most = rows * words * 4 // (len(x) * x.element_size()) // tile.words
    size = min(max(1, most), _parts(words, tile.words)) * tile.words
    memory = x.new_empty(len(x), size)
    for first in range(0, words, size):
        count = min(size, words - first)
        grid = (_parts(len(x), tile.rows), _parts(count, tile.words))
        _launch("errors", grid, x, weight, bias, target, norm, scale, memory, size, len(x), words, first)
        yield slice(first, first + count), memory[:, :count]


def _launch(
    name: str, grid: tuple[int, int], x: Tensor, weight: Tensor, *arguments: Any, **constants: int
) -> None:
    with torch.cuda.device_of(x):
        getattr(_kernels(), name)[grid](
            *(x, x.stride(0), weight, weight.stride(0), *arguments),
            WIDTH=x.shape[1],
            **constants,
            **tiles(x.device).constants,
        )


def _kernels() -> ModuleType:
    from . import fused_loss_kernels  # which imports Triton

    return fused_loss_kernels


def _dense(x: Tensor) -> Tensor:
    """x itself if its columns are dense."""
    return x if x.stride(1) == 1 else x.contiguous()


def _parts(whole: int, part: int) -> int:
    return -(-whole // part)
