"""The linear transformer's attention (Katharopoulos et al. 2020): 1 + elu with a normaliser."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..errors import check_choice
from .linear import LinearAttention, next_sums
from .parts import joined
from .parts.features import one_plus_elu
from .parts.new_tokens import NewTokens
from .parts.state import State
from .registry import register_attention


@dataclass
class EluOptions:
    """Options of "elu"."""

    normalizer: str = field(
        default="sum",
        metadata={"help": "denominator: sum (of the weights) or none (as in TransNormer's Table 1)"},
    )

    def __post_init__(self) -> None:
        check_choice("elu attention has no normalizer", self.normalizer, ("sum", "none"))


@register_attention("elu")
class EluAttention(LinearAttention):
    """`phi(q) S / (phi(q) . z + 1e-6)`, `phi = 1 + elu`, without rotary positions or scaling."""

    Options = EluOptions

    def __init__(self, embed_dim: int, num_heads: int, **kwargs) -> None:
        super().__init__(embed_dim, num_heads, **kwargs)
        self.normalize = self.options.normalizer == "sum"

    def joins(self) -> tuple[str, None] | None:
        """See `LinearAttention.joins`."""
        return ("1+elu", None) if self.has_methods_of(EluAttention, "attend", "features") else None

    def features(self, q: Tensor, k: Tensor, positions: Tensor | None) -> tuple[Tensor, Tensor]:
        """See `LinearAttention.features`; a sum without denominator needs float32's range in float16."""
        if q.dtype == torch.float16 and not self.normalize:
            q, k = q.float(), k.float()
        return one_plus_elu(q), one_plus_elu(k)

    def decode_joined(self, qkv: Tensor, new: NewTokens, state: State | None) -> tuple[Tensor, State]:
        """See `SelfAttention.decode_joined`; q and k become features in one call."""
        own = self.has_methods_of(EluAttention, "decode", "features")
        if state is None or new.padding_mask is not None or not own:
            return super().decode_joined(qkv, new, state)
        q, k, v = joined.features(qkv, self.num_heads, "1+elu", None)
        out, total = next_sums(q, k, v, state["sum"], normalize=self.normalize, backend=self.backend)
        return out, {"sum": total}
