"""Skyformer (Chen et al. 2021): kernelized attention through sampled rows. Bidirectional, linear cost."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from .base import SelfAttention, real_tokens
from .parts.gaussian import gaussian_kernel, scaled
from .parts.landmarks import iterative_inverse
from .parts.limits import check_count
from .parts.sampling import SampledPositions
from .registry import register_attention

# gamma of the paper: added to the diagonal before the inverse.
RIDGE = 0.1


@dataclass
class SkyformerOptions:
    """Options of "skyformer"."""

    landmarks: int = field(
        default=128, metadata={"help": "sampled rows m, half of them queries and half keys; an even number"}
    )

    def __post_init__(self) -> None:
        check_count("--skyformer-landmarks", self.landmarks, even=True)


@register_attention("skyformer")
class SkyformerAttention(SelfAttention):
    """`K(q, S) D^(-1/2) Z D^(-1/2) K(S, k) v`, K the Gaussian kernel, q and k scaled by d^(-1/4).

    S are m/2 queries and m/2 keys drawn from the real positions of a row, the same ones for all heads;
    `M = K(S, S) + 0.1 I`, D its row sums, Z about the inverse of `D^(-1/2) M D^(-1/2)`. They are
    redrawn before each update; evaluation keeps the last draws. Computed in float32 (float64 for float64
    inputs); there is no normaliser and no dropout. Time O(N m d + m^3).
    """

    Options = SkyformerOptions
    bidirectional_only = True

    def __init__(self, embed_dim: int, num_heads: int, **kwargs) -> None:
        super().__init__(embed_dim, num_heads, **kwargs)
        self.sampled = SampledPositions(2, self.options.landmarks // 2)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Tensor | None) -> Tensor:
        """See `SelfAttention.attend`."""
        if q.shape[2] == 0:
            return v
        positions = self.sampled(real_tokens(padding_mask, q))
        with torch.autocast(q.device.type, enabled=False):
            q, k = scaled(q), scaled(k)
            samples = torch.cat([_rows(q, positions[:, 0]), _rows(k, positions[:, 1])], 2)
            right = gaussian_kernel(samples, k)
            if padding_mask is not None:
                right = right.masked_fill(padding_mask[:, None, None], 0.0)
            scale, inverse = self._normalised_inverse(samples)
            collected = inverse @ (scale.unsqueeze(-1) * (right @ v.to(q.dtype)))
            return (gaussian_kernel(q, samples) * scale.unsqueeze(-2)) @ collected

    def _normalised_inverse(self, samples: Tensor) -> tuple[Tensor, Tensor]:
        """`D^(-1/2)` as `(B, H, m)`, and Z."""
        ridge = RIDGE * torch.eye(samples.shape[2], dtype=samples.dtype, device=samples.device)
        kernel = gaussian_kernel(samples, samples) + ridge
        scale = kernel.sum(-1).rsqrt()
        return scale, iterative_inverse(scale.unsqueeze(-1) * kernel * scale.unsqueeze(-2))


def _rows(x: Tensor, positions: Tensor) -> Tensor:
    """`x: (B, H, N, d)` at `positions: (B, m)`, `(B, H, m, d)`."""
    index = positions[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[3])
    return x.gather(2, index)
