"""One new token of TransNormer's attentions, each in one call of the C++ kernels, without derivatives.

A decoding step of a small model is thirty operators an attention, each of which costs more than its
arithmetic. What these compute, with PyTorch's operators and derivatives, is in
`user_dir/attention/{norm,diag}.py` and `user_dir/modules/{lrpe,norms}.py`. float32 on a CPU alone.
"""

import torch
from torch import Tensor

from . import extension, operators

norm_step = operators.norm_step
"""`(q, k, v, direction, theta, positions, state, one_plus) -> (out, state)`: NormAttention.

q, k, v, out: `(B, H, 1, d)`; direction `(d,)` and theta `(d // 2,)` float64 of LRPE; positions `(B,)`; state
`(B, H, d, d)`; one_plus: features 1 + elu instead of elu.
"""

block_step = operators.block_step
"""`(q, k, v, direction, theta, scale, places, keys, values, softmax) -> out`: DiagAttention.

As for `norm_step`; places `(B,)` in the block, whose keys and values `(B, H, C, d)` are written there;
scale of LRPE; softmax: weights by softmax instead of ReLU.
"""

rms_norm = operators.rms_norm
"""`(x, eps) -> x / (root mean square over the last dimension + eps)`, x of any shape."""


def _built() -> bool:
    """Not so where the kernels were built from older sources, which lack these."""
    if not extension.loaded("cpp"):
        return False
    try:
        rms_norm(torch.zeros(1), 0.1)
    except NotImplementedError:
        return False
    return True


_BUILT = _built()


def decodes(x: Tensor) -> bool:
    """Whether these run for inputs like x: built, float32, on the CPU, without gradients or tracing."""
    return (
        _BUILT
        and x.dtype is torch.float32
        and x.device.type == "cpu"
        and not torch.is_grad_enabled()
        and not torch.compiler.is_compiling()
    )
