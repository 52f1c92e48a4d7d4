"""One new token of TransNormer's layers, and RMSNorm, each part in one call of the compiled kernels.

A decoding step of a small model is thirty operators an attention, each of which costs more than its
arithmetic, and RMSNorm with its derivative is a dozen. The same with PyTorch's operators is in
`user_dir/attention/{norm,diag}.py` and `user_dir/modules/{lrpe,norms,feed_forward}.py`.
"""

import torch
from torch import Tensor

from . import extension, operators
from .transforms import in_transform

_OPERATORS = getattr(torch.ops, operators.NAMESPACE)

norm_step = _OPERATORS.norm_step.default
"""`(q, k, v, direction, theta, positions, state, one_plus) -> (out, state)`: NormAttention, float32.

q, k, v, out: `(B, H, 1, d)`; direction `(d,)` and theta `(d // 2,)` float64 of LRPE; positions `(B,)`; state
`(B, H, d, d)`; one_plus: features 1 + elu instead of elu. No derivative.
"""

linear_step = _OPERATORS.linear_step.default
"""`(x, eps, weight, bias, residual) -> residual + x W^T + b`, x: `(N, B, D)`, float32, on a CPU.

With eps of the RMSNorm of x; bias and residual may be None. No derivative.
"""

gated_step = _OPERATORS.gated_step.default
"""`(x, eps, weight, bias, out_weight, out_bias) -> x + W3 (silu(gate) * value) + b3`: like `linear_step`.

weight and bias of the RMSNorm of x give gates, then values: `(2 inner, D)` and `(2 inner,)` or None.
"""

MOST_ROWS = 8
"""Rows up to which `linear_step` and `gated_step` take no longer than PyTorch's matrix products."""

LARGEST_BLOCK = 8192
"""Positions of a block whose weights `block_step` is sure to have shared memory for on a GPU."""

rms_norm = _OPERATORS.rms_norm.default
"""`(x, eps) -> x / (root mean square over the last dimension + eps)`, x of any shape: on a CPU float32. No
derivative."""

rms_norm_forward = _OPERATORS.rms_norm_forward.default
"""`rms_norm` and the root mean squares `(rows,)` in float32, of which there is one a row; CUDA alone."""

rms_norm_backward = _OPERATORS.rms_norm_backward.default
"""`(grad, out, root, eps) -> grad_x` from the results of `rms_norm_forward`; CUDA alone."""


def block_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    direction: Tensor,
    theta: Tensor,
    scale: float,
    places: Tensor,
    keys: Tensor,
    values: Tensor,
    softmax: bool,
) -> Tensor:
    """The output of DiagAttention, float32, whose keys and values of the block it writes.

    Args:
        q, k, v, direction, theta: as for `norm_step`.
        scale: of LRPE.
        places: `(B,)` in the block. One outside is an error on a CPU; on a GPU, which nobody waits for, its
            token becomes NaN.
        keys, values: `(B, H, C, d)` of the block.
        softmax: weights by softmax instead of ReLU.
    """
    given = (q, k, v, direction, theta, scale, places, keys, values, softmax)
    out = _OPERATORS.block_step.default(*given)
    # Autograd, which the operator is below, refuses to go back to the former numbers.
    torch.autograd.graph.increment_version((keys, values))
    return out


_CPP = extension.loaded("cpp")


def seen_into() -> bool:
    """Whether `torch.compile` or `torch.func` traces the computation, which kernels do not support."""
    return torch.compiler.is_compiling() or in_transform()


def compiled(x: Tensor) -> bool:
    """Whether there are compiled kernels for x's device that run now."""
    if seen_into():
        return False
    return (x.is_cpu and _CPP) or (x.is_cuda and not extension.reason_on_gpu(x.device))


def decodes(x: Tensor) -> bool:
    """Whether the steps run for inputs like x: float32, on a device with kernels, without gradients."""
    return x.dtype is torch.float32 and not torch.is_grad_enabled() and compiled(x)


def few_rows(x: Tensor) -> bool:
    """Whether `linear_step` and `gated_step` are for x, `(N, B, D)`: few rows on a CPU, as in `decodes`."""
    return (
        x.shape[0] * x.shape[1] <= MOST_ROWS
        and x.is_cpu
        and decodes(x)
        and not torch.is_autocast_enabled("cpu")
    )


def normalizes(x: Tensor) -> bool:
    """Whether `rms_norm_forward` and `rms_norm_backward` run for inputs like x."""
    return x.is_cuda and x.dtype is not torch.float64 and compiled(x)
