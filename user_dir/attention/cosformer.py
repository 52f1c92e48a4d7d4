"""cosFormer (Qin et al. 2022): linear attention weighed by the cosine of the distance. O(N d^2)."""

import math
from dataclasses import dataclass, field
from typing import Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from causal_linear_attention.chunked import accumulation_dtype

from ..errors import UserError
from .linear import LinearAttention
from .parts.limits import check_count, needed_length
from .parts.new_tokens import NewTokens
from .parts.state import State
from .registry import register_attention

# The smallest denominator, as in the comparison code (the authors' release has 1e-6).
FLOOR = 1e-4


@dataclass
class CosformerOptions:
    """Options of "cosformer"."""

    length: Optional[int] = field(
        default=None,
        metadata={
            "help": "the distance M at which the cosine reaches zero, and the longest sequence; "
            "default: the model's maximum positions",
            "size": False,
        },
    )
    no_output_map: bool = field(
        default=False, metadata={"help": "no linear map after the heads, as in the authors' language model"}
    )

    def __post_init__(self) -> None:
        if self.length is not None:
            check_count("--cosformer-length", self.length)


@register_attention("cosformer")
class CosformerAttention(LinearAttention):
    """Weights `relu(q_i) . relu(k_j) cos(pi/2 (i - j) / M)`, divided by their sum or 1e-4 if that is larger.

    The cosine of a difference is linear in features: `[relu(x) sin t, relu(x) cos t]`, `t = pi/2 i / M`.
    M is fixed (both public codes take the current batch's length, so that an output depends on how much text
    follows); longer sequences, whose distances would make the cosine negative, raise UserError. No scaling
    by d, no dropout. The decoding state is 2d by d + 1.
    """

    Options = CosformerOptions

    def __init__(self, embed_dim: int, num_heads: int, **kwargs) -> None:
        super().__init__(embed_dim, num_heads, **kwargs)
        self.q_proj.reset_parameters()
        self.k_proj.reset_parameters()
        if self.options.no_output_map:
            self.out_proj = nn.Identity()
        self.length = self.options.length or needed_length("cosformer", self.max_positions)

    def features(self, q: Tensor, k: Tensor, positions: Tensor | None) -> tuple[Tensor, Tensor]:
        """See `LinearAttention.features`; float32 for half precision, 2d wide."""
        if positions is None:
            positions = torch.arange(q.shape[2], device=q.device)[None]
        wide = accumulation_dtype(q.dtype)
        angles = positions[:, None, :, None].to(wide) * (math.pi / 2 / self.length)
        turns = torch.cat([angles.sin(), angles.cos()], -1).unsqueeze(-1)
        return tuple((turns * F.relu(x.to(wide)).unsqueeze(-2)).flatten(-2) for x in (q, k))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Tensor | None) -> Tensor:
        """See `SelfAttention.attend`; raises UserError for a row of more than M tokens."""
        if q.shape[2] > self.length:
            self._check_length(q.shape[2] if padding_mask is None else int((~padding_mask).sum(1).max()))
        return _quotient(super().attend(q, k, F.pad(v, (0, 1), value=1.0), padding_mask))

    def first_state(self, q: Tensor) -> State:
        """See `SelfAttention.first_state`; "longest" is as long as any row may be, padding included."""
        batch, heads, _, dim = q.shape
        return {
            "sum": q.new_zeros(batch, heads, 2 * dim, dim + 1, dtype=accumulation_dtype(q.dtype)),
            "longest": 0,
        }

    def decode(self, q: Tensor, k: Tensor, v: Tensor, new: NewTokens, state: State) -> tuple[Tensor, State]:
        """See `SelfAttention.decode`; O(d^2) per token. Raises UserError for a row of more than M tokens."""
        longest = state["longest"] + q.shape[2]
        out, state = super().decode(q, k, F.pad(v, (0, 1), value=1.0), new, state)
        if longest > self.length:
            longest = int(new.end.max())
            self._check_length(longest)
        return _quotient(out), {**state, "longest": longest}

    def _check_length(self, length: int) -> None:
        if length > self.length:
            raise UserError(
                f"a sequence of {length} tokens is longer than the {self.length} of cosformer attention; "
                "shorten it (--tokens-per-sample) or train with a larger --cosformer-length"
            )


def _quotient(sums: Tensor) -> Tensor:
    """Numerators and denominators `(..., d + 1)` to `(..., d)`."""
    return sums[..., :-1] / sums[..., -1:].clamp(min=FLOOR)
