"""Gated linear attention (Yang et al. 2024) with one gate per head: flash-linear-attention's simple GLA."""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from causal_linear_attention.chunked import accumulation_dtype

from ..modules.linear_maps import map_rows
from ..modules.norms import BACKENDS_WITH_KERNELS, WeightedRMSNorm
from .registry import register_attention
from .retention import GatedRetention, RetentionOptions

# What logarithms of gates are divided by, so that they begin near 1.
TEMPERATURE = 16


@dataclass
class GatedOptions(RetentionOptions):
    """Options of "gated"."""

    flag = "gated"


@register_attention("gated")
class GatedAttention(GatedRetention):
    """`rms(q_t sum_s e^(g_(s+1) + ... + g_t) k_s^T v_s / sqrt(d))`, `g = log(sigmoid(W x + b)) / 16`.

    g is one number per head and position, as in Mamba-2; the norm is per head and has a weight.
    """

    Options = GatedOptions

    def __init__(self, embed_dim: int, num_heads: int, **kwargs) -> None:
        super().__init__(embed_dim, num_heads, **kwargs)
        self.decay_proj = nn.Linear(embed_dim, num_heads)
        self.norm = WeightedRMSNorm(self.value_head_dim)

    def features(self, q: Tensor, k: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
        """See `DecayingAttention.features`."""
        return q * self.head_dim**-0.5, k

    def log_decay(self, x: Tensor) -> Tensor:
        """See `DecayingAttention.log_decay`."""
        gates = map_rows(self.decay_proj, x, self.backend in BACKENDS_WITH_KERNELS)
        return F.logsigmoid(gates.to(accumulation_dtype(gates.dtype))).permute(1, 2, 0) / TEMPERATURE

    def normed(self, out: Tensor, at: Tensor) -> Tensor:
        """See `GatedRetention.normed`."""
        return self.norm(out)
