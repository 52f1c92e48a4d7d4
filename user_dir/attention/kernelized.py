"""Kernelized attention (Chen et al. 2021, Skyformer): a Gaussian kernel, not normalised. Quadratic."""

import torch
from torch import Tensor

from .base import SelfAttention
from .parts.gaussian import gaussian_kernel, scaled
from .registry import register_attention


@register_attention("kernelized")
class KernelizedAttention(SelfAttention):
    """`out_i = sum_j exp(-|q_i - k_j|^2 / 2) v_j`, q and k scaled by d^(-1/4).

    There is no normaliser: outputs grow with the number of keys near a query and vanish without any. The
    kernel is computed in float32 for half precision. Dropout acts on it.
    """

    bidirectional_only = True

    def attend(self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Tensor | None) -> Tensor:
        """See `SelfAttention.attend`; O(N^2 d)."""
        with torch.autocast(q.device.type, enabled=False):
            weights = gaussian_kernel(scaled(q), scaled(k))
            if padding_mask is not None:
                weights = weights.masked_fill(padding_mask[:, None, None], 0.0)
            return self.dropout(weights) @ v.to(weights.dtype)
