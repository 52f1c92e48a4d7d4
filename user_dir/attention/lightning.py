"""Lightning attention of TransNormerLLM (Qin et al. 2023): NormAttention that forgets, with a gate."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from causal_linear_attention.chunked import accumulation_dtype
from causal_linear_attention.recomputing import recomputed

from ..modules import RMSNorm
from ..modules.linear_maps import map_rows
from ..modules.norms import BACKENDS_WITH_KERNELS
from .decaying import DecayingAttention, joined_heads
from .registry import register_attention


class CosineLRPE(nn.Module):
    """`[x cos(m theta), x sin(m theta)]` at position m: scores become `sum_c q_c k_c cos((m - n) theta_c)`.

    theta is learned, one number per head and channel, and starts at 10000^(-2c / D), where c counts the
    channels of all heads. Angles are computed in float64.
    """

    def __init__(self, num_heads: int, head_dim: int) -> None:
        super().__init__()
        width = num_heads * head_dim
        exponents = torch.arange(width, dtype=torch.float32) * (-2.0 / width)
        self.theta = nn.Parameter((10000.0**exponents).view(num_heads, 1, head_dim))

    def forward(self, q: Tensor, k: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """`q, k: (B, H, N, d)` at integer `positions`, `(N,)` or `(B, N)`; each `(B, H, N, 2 d)`."""
        wide = accumulation_dtype(q.dtype)
        places = positions.unsqueeze(-1) if positions.dim() == 1 else positions[:, None, :, None]
        angles = places * self.theta.double()
        cos, sin = angles.cos().to(wide), angles.sin().to(wide)
        q, k = (recomputed(_turned, x, cos, sin) for x in (q, k))
        return q, k


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    wide = x.to(cos.dtype)
    return torch.cat([wide * cos, wide * sin], -1).to(x.dtype)


@register_attention("lightning")
class LightningAttention(DecayingAttention):
    """`W_o (u * rms(concat_heads(q_t sum_s e^(-a (t - s)) k_s^T v_s)))`, q and k through silu.

    As in the released models of TransNormerLLM, whose parameters have these names. The slope a of a head is
    that of ALiBi (Press et al. 2022) times `1 - layer / (layers - 1) + 1e-5`: the last layer hardly forgets.
    Only the first layer has LRPE (with the decay, the paper's LRPE-d). The norm, over all heads together,
    has no weight, and the maps have no biases.
    """

    constants = ("rates",)

    def __init__(self, embed_dim: int, num_heads: int, **kwargs) -> None:
        super().__init__(embed_dim, num_heads, **kwargs)
        layer, layers = self.place
        self.qkvu_proj = nn.Linear(embed_dim, 4 * embed_dim, bias=False)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=False)
        self.lrpe = CosineLRPE(num_heads, self.head_dim) if layer == 0 else None
        self.norm = RMSNorm()
        remaining = 1 - layer / max(layers - 1, 1) + 1e-5
        self.rates = torch.tensor(slopes(num_heads), dtype=torch.float64, device="cpu") * -remaining

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """See `DecayingAttention.project`."""
        q, k, v, gate = map_rows(self.qkvu_proj, x, self.backend in BACKENDS_WITH_KERNELS).chunk(4, -1)
        return F.silu(self.heads(q)), F.silu(self.heads(k)), self.heads(v), gate

    def features(self, q: Tensor, k: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
        """See `DecayingAttention.features`."""
        return (q, k) if self.lrpe is None else self.lrpe(q, k, at)

    def log_decay(self, x: Tensor) -> Tensor:
        """See `DecayingAttention.log_decay`."""
        return self.rates.to(accumulation_dtype(x.dtype))

    def finish(self, out: Tensor, gate: Tensor, at: Tensor) -> Tensor:
        """See `DecayingAttention.finish`."""
        return gate * self.norm(joined_heads(out)).to(gate.dtype)


def slopes(heads: int) -> list[float]:
    """ALiBi's `2^(-8 h / heads)`, h from 1.

    If the number of heads is not a power of 2, they are the decays of the next lower power, then every second
    decay of the next higher one.
    """
    power = 1 << (heads.bit_length() - 1)
    own = [2.0 ** (-8 * h / power) for h in range(1, power + 1)]
    return own if power == heads else own + slopes(2 * power)[::2][: heads - power]
