"""The steps of `fused.py` on Triton: its operators on a GPU where the CUDA kernels were not built.

Products in blocks are of the types of `triton_backend.py`, in float32 each three of TensorFloat-32.
"""

from typing import Any

import torch
from torch import Tensor

from . import fused_outputs as outputs
from .triton_backend import products

LARGEST_BLOCK = 64
"""Positions of a block, and columns of a head, up to which `blocks` keeps its tiles in registers."""

_NUMBERS = 4096  # of the rows that a program of `residual` takes at once
_COLUMNS = 1024  # of a row that a program of `gated` takes


def residual(
    x: Tensor, y: Tensor | None, seed: Tensor | None, p: float, eps: float, norm: bool, keep: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The operator `residual` of `fused.py`."""
    total, out, root = outputs.residual(x, y, seed, p, eps, norm, keep)
    x, y = x.contiguous(), None if y is None else y.contiguous()
    given = x, y, seed, total if total.numel() else None, out if norm else None, root
    _launch_rows("residual", x, given, eps, p)
    return total, out, root


def residual_backward(
    grad_sum: Tensor | None,
    grad_out: Tensor | None,
    out: Tensor,
    root: Tensor,
    seed: Tensor | None,
    p: float,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """The operator `residual_backward` of `fused.py`."""
    grads = outputs.residual_backward(grad_sum, grad_out, out, root, seed, p, eps)
    before, after = (None if x is None else x.contiguous() for x in (grad_sum, grad_out))
    _launch_rows("residual_backward", grads[0], (before, after, out.contiguous(), root, seed, *grads), eps, p)
    return grads


def gated(inputs: Tensor) -> Tensor:
    """The operator `gated` of `fused.py`."""
    out = outputs.gated(inputs)
    _launch_columns("gated", out, *_rows(inputs), out)
    return out


def gated_backward(grad: Tensor, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """The operator `gated_backward` of `fused.py`."""
    grad_inputs, out = outputs.gated_backward(grad, inputs)
    _launch_columns("gated_backward", out, *_rows(grad), *_rows(inputs), *_rows(grad_inputs), out)
    return grad_inputs, out


def features(
    qkv: Tensor, direction: Tensor | None, theta: Tensor | None, heads: int, map: int, scale: float
) -> tuple[Tensor, Tensor]:
    """The operator `features` of `fused.py`."""
    q, k = outputs.features(qkv, direction, theta, heads, map, scale)
    given = qkv.contiguous(), _flat(direction), _flat(theta), q, k
    _launch_heads("features", qkv, given, heads, scale, MAP=map)
    return q, k


def features_backward(
    grad_q: Tensor,
    grad_k: Tensor,
    grad_v: Tensor,
    qkv: Tensor,
    direction: Tensor | None,
    theta: Tensor | None,
    heads: int,
    map: int,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """The operator `features_backward` of `fused.py`."""
    grads = [_dense(x) for x in (grad_q, grad_k, grad_v)]
    grad_qkv = outputs.contiguous(qkv)
    grad_theta = outputs.parts_of_theta(qkv, theta, heads, outputs.POSITIONS_OF_PART)
    given = *(y for x in grads for y in (x, x.stride()[:3])), qkv.contiguous()
    given = *given, _flat(direction), _flat(theta), grad_qkv, grad_theta
    _launch_heads("features_backward", qkv, given, heads, scale, MAP=map)
    return grad_qkv, grad_theta


def blocks(
    qkv: Tensor,
    direction: Tensor | None,
    theta: Tensor | None,
    heads: int,
    size: int,
    scale: float,
    causal: bool,
    softmax: bool,
    padding: Tensor | None,
    seed: Tensor | None,
    p: float,
) -> Tensor:
    """The operator `blocks` of `fused.py`, of blocks and heads up to `LARGEST_BLOCK`."""
    out = outputs.blocks(qkv, direction, theta, heads, size, scale, causal, softmax, padding, seed, p)
    given = qkv.contiguous(), _flat(direction), _flat(theta), _flat(padding), seed, out
    _launch_blocks("blocks", qkv, given, heads, size, scale, causal, softmax, p)
    return out


def blocks_backward(
    grad: Tensor,
    qkv: Tensor,
    direction: Tensor | None,
    theta: Tensor | None,
    heads: int,
    size: int,
    scale: float,
    causal: bool,
    softmax: bool,
    padding: Tensor | None,
    seed: Tensor | None,
    p: float,
) -> tuple[Tensor, Tensor]:
    """The operator `blocks_backward` of `fused.py`."""
    grad_qkv = outputs.contiguous(qkv)
    grad_theta = outputs.parts_of_theta(qkv, theta, heads, size)
    given = grad.contiguous(), qkv.contiguous(), _flat(direction), _flat(theta), _flat(padding)
    given = *given, seed, grad_qkv, grad_theta
    _launch_blocks("blocks_backward", qkv, given, heads, size, scale, causal, softmax, p)
    return grad_qkv, grad_theta


def _launch_rows(name: str, like: Tensor, given: tuple, eps: float, p: float) -> None:
    """Several rows a program, or one that is long."""
    width = like.shape[-1]
    rows, columns = like.numel() // max(width, 1), _power(width)
    at_once = max(1, _NUMBERS // columns)
    constants = {"WIDTH": width, "ROWS": at_once, "COLUMNS": columns, **_dropout(p)}
    warps = 4 if columns <= _NUMBERS else 16
    _launch(name, like, (_parts(rows, at_once),), *given, rows, eps, num_warps=warps, **constants)


def _launch_columns(name: str, out: Tensor, *given: Any) -> None:
    rows, width = out.shape
    columns = min(_power(width), _COLUMNS)
    _launch(name, out, (rows, _parts(width, columns)), *given, WIDTH=width, COLUMNS=columns)


def _launch_heads(
    name: str,
    qkv: Tensor,
    given: tuple,
    heads: int,
    scale: float,
    positions: int = outputs.POSITIONS_OF_PART,
    **constants: Any,
) -> None:
    """A program for so many positions of each head."""
    length, batch, width = qkv.shape
    dim = width // 3 // heads
    programs = _parts(length, positions) * batch * heads if dim else 0
    sizes = {"HEADS": heads, "DIM": dim, "POSITIONS": positions, "PAIRS": max(16, _power(_parts(dim, 2)))}
    _launch(name, qkv, (programs,), *given, length, batch, scale, **sizes, **constants)


def _launch_blocks(
    name: str,
    qkv: Tensor,
    given: tuple,
    heads: int,
    size: int,
    scale: float,
    causal: bool,
    softmax: bool,
    p: float,
) -> None:
    import triton.language as tl

    operands, precision = products(qkv.dtype)
    if precision == "ieee" and qkv.dtype == torch.float32:
        precision = "tf32x3"  # as exact, on tensor cores: a tile this large compiles for minutes without them
    rows, columns = max(16, _power(size)), max(16, _power(qkv.shape[2] // 3 // heads))
    constants = {"CAUSAL": causal, "SOFTMAX": softmax, **_dropout(p), "ROWS": rows, "COLUMNS": columns}
    constants |= {"CAST": getattr(tl, operands), "PRECISION": precision}
    warps = 4 if max(rows, columns) < 64 else 8
    _launch_heads(name, qkv, given, heads, scale, size, num_warps=warps, **constants)


def _launch(name: str, like: Tensor, grid: tuple[int, ...], *given: Any, **constants: Any) -> None:
    if 0 in grid:
        return
    from . import triton_fused_kernels  # which imports Triton

    with torch.cuda.device_of(like):
        getattr(triton_fused_kernels, name)[grid](*given, **constants)


def _dropout(p: float) -> dict[str, Any]:
    """The threshold for words in `fused.dropout_factors`, and the factor of kept numbers."""
    return {"THRESHOLD": min(round(p * 2**32), 2**32 - 1), "FACTOR": 1 / (1 - p)}


def _rows(x: Tensor) -> tuple[Tensor, int]:
    """Rows whose numbers lie side by side, and the numbers from one to the next."""
    x = _dense(x)
    return x, x.stride(0)


def _dense(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def _flat(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.contiguous()


def _power(columns: int) -> int:
    """The power of 2 that holds them."""
    return 1 << max(0, columns - 1).bit_length()


def _parts(whole: int, part: int) -> int:
    return -(-whole // part)
