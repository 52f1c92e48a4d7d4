"""One new token of TransNormer's attentions, and RMSNorm, each in one call of the compiled kernels.

A decoding step of a small model is thirty operators an attention, each of which costs more than its
arithmetic, and RMSNorm with its derivative is a dozen. What these compute, with PyTorch's operators, is in
`user_dir/attention/{norm,diag}.py` and `user_dir/modules/{lrpe,norms}.py`.
"""

import torch
from torch import Tensor

from . import extension, operators

norm_step = torch.ops.causal_linear_attention.norm_step.default
"""`(q, k, v, direction, theta, positions, state, one_plus) -> (out, state)`: NormAttention, float32.

q, k, v, out: `(B, H, 1, d)`; direction `(d,)` and theta `(d // 2,)` float64 of LRPE; positions `(B,)`; state
`(B, H, d, d)`; one_plus: features 1 + elu instead of elu. No derivative.
"""

block_step = torch.ops.causal_linear_attention.block_step.default
"""`(q, k, v, direction, theta, scale, places, keys, values, softmax) -> out`: DiagAttention, float32.

As for `norm_step`; places `(B,)` in the block, whose keys and values `(B, H, C, d)` are written there;
scale of LRPE; softmax: weights by softmax instead of ReLU. A place outside the block is an error on a CPU; on
a GPU, which nobody waits for, its token becomes NaN.
"""

LARGEST_BLOCK = 8192
"""Positions of a block whose weights `block_step` is sure to have shared memory for on a GPU."""

rms_norm = torch.ops.causal_linear_attention.rms_norm.default
"""`(x, eps) -> x / (root mean square over the last dimension + eps)`, x of any shape: on a CPU float32. No
derivative."""

rms_norm_forward = torch.ops.causal_linear_attention.rms_norm_forward.default
"""`rms_norm` and the root mean squares `(rows,)` in float32, of which there is one a row; CUDA alone."""

rms_norm_backward = torch.ops.causal_linear_attention.rms_norm_backward.default
"""`(grad, out, root, eps) -> grad_x` from what `rms_norm_forward` returned; CUDA alone."""


_CPP = extension.loaded("cpp")


def compiled(x: Tensor) -> bool:
    """Whether there are kernels for x's device, which no tracing and no `torch.func` can see into."""
    if torch.compiler.is_compiling() or operators.in_transform():
        return False
    return (x.is_cpu and _CPP) or (x.is_cuda and not extension.reason_on_gpu(x.device))


def decodes(x: Tensor) -> bool:
    """Whether the steps run for inputs like x: float32, on a device with kernels, without gradients."""
    return x.dtype is torch.float32 and not torch.is_grad_enabled() and compiled(x)


def normalizes(x: Tensor) -> bool:
    """Whether `rms_norm_forward` and `rms_norm_backward` run for inputs like x."""
    return x.is_cuda and x.dtype is not torch.float64 and compiled(x)
