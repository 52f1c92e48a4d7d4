"""NormAttention (Qin et al. 2022, TransNormer): linear attention normalised by RMSNorm, not by a sum."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from causal_linear_attention.decoding import norm_step

from ..errors import check_choice
from ..modules import LRPE, RMSNorm
from ..modules.lrpe import turn_both
from .linear import LinearAttention
from .parts.features import FEATURE_MAPS
from .parts.new_tokens import NewTokens
from .parts.state import State
from .registry import register_attention


@dataclass
class NormOptions:
    """Options of "norm"."""

    feature_map: str = field(
        default="elu", metadata={"help": "feature map of q and k: elu (T1, the default) or 1+elu (T2)"}
    )
    positions: str = field(
        default="lrpe", metadata={"help": "positions inside attention: lrpe (rotary) or none"}
    )

    def __post_init__(self) -> None:
        check_choice("norm attention has no feature map", self.feature_map, FEATURE_MAPS)
        check_choice("unknown positions", self.positions, ("lrpe", "none"))


@register_attention("norm")
class NormAttention(LinearAttention):
    """`rms(concat_heads(q_t sum_s k_s^T v_s)) W_o`, q and k through elu or 1+elu and LRPE.

    TransNormer, eq. 13 and 14; LRPE is in the authors' code only. No denominator, scaling or dropout inside.
    """

    Options = NormOptions

    def __init__(self, embed_dim: int, num_heads: int, **kwargs) -> None:
        super().__init__(embed_dim, num_heads, **kwargs)
        self.feature_map = FEATURE_MAPS[self.options.feature_map]
        # `urpe` is the name in the authors' checkpoints.
        self.urpe = LRPE(self.head_dim) if self.options.positions == "lrpe" else None
        self.norm = RMSNorm()

    def joins(self) -> tuple[str, LRPE | None] | None:
        """See `LinearAttention.joins`."""
        own = self.has_methods_of(NormAttention, "attend", "features")
        return (self.options.feature_map, self.urpe) if own else None

    def features(self, q: Tensor, k: Tensor, positions: Tensor | None) -> tuple[Tensor, Tensor]:
        """See `LinearAttention.features`; float16 becomes float32, whose range the unnormalised sum needs."""
        if q.dtype == torch.float16:
            q, k = q.float(), k.float()
        q, k = self.feature_map(q), self.feature_map(k)
        if self.urpe is None:
            return q, k
        if positions is None:
            rotations = self.urpe.table(q.shape[2], q.dtype)
        else:
            rotations = self.urpe.rotations(positions[:, None], q.dtype)
        return turn_both(q, k, rotations)

    def decode(self, q: Tensor, k: Tensor, v: Tensor, new: NewTokens, state: State) -> tuple[Tensor, State]:
        """See `LinearAttention.decode`; one token in one call where kernels run."""
        if self.urpe is None or new.padding_mask is not None or not self.steps(q):
            return super().decode(q, k, v, new, state)
        one_plus = self.options.feature_map == "1+elu"
        out, total = norm_step(q, k, v, *self.urpe.angles(q.dtype), new.start, state["sum"], one_plus)
        return out, {"sum": total}
