"""DiagAttention (Qin et al. 2022, TransNormer): attention inside blocks on the diagonal. Linear cost."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from causal_linear_attention import fused
from causal_linear_attention.chunked import without_autocast
from causal_linear_attention.decoding import LARGEST_BLOCK, block_step

from ..errors import UserError, check_choice
from ..modules import LRPE, RMSNorm
from ..modules.dropout import drops
from ..modules.lrpe import turn_both
from .base import SelfAttention
from .parts import joined
from .parts.block_diagonal import (
    attend_in_blocks,
    decode_in_blocks,
    first_block,
    relu_weights,
)
from .parts.blocks import masked_softmax
from .parts.new_tokens import NewTokens
from .parts.state import State, in_dtype
from .registry import register_attention


@dataclass
class DiagOptions:
    """Options of "diag"."""

    activation: str = field(
        default="relu",
        metadata={"help": "weights: relu followed by RMSNorm (T1, the default), or softmax (T2)"},
    )
    block_size: int = field(default=64, metadata={"help": "positions in a block"})
    positions: str = field(
        default="lrpe", metadata={"help": "positions inside a block: lrpe (rotary) or none"}
    )

    def __post_init__(self) -> None:
        check_choice("diag attention has no activation", self.activation, ("relu", "softmax"))
        if self.block_size < 1:
            raise UserError(f"the block size of diag attention is {self.block_size}; it must be 1 or more")
        check_choice("unknown positions", self.positions, ("lrpe", "none"))


@register_attention("diag")
class DiagAttention(SelfAttention):
    """`w v` inside blocks of C positions, `w = relu(z)` (ReLA) or `softmax(z)`, `z = q k^T / sqrt(d)`.

    With ReLU the joined heads are RMS-normalised before the output map; before that their sums would leave
    float16's range, so that float16 is computed in float32. Blocks start at the first
    token; the last one may be shorter, and only its real positions are keys (the authors' code lets zero
    rows into the bidirectional softmax). Dropout acts on w. Time O(N C d); the decoding state is one block.
    """

    Options = DiagOptions
    qkv_gain = 1.0

    def __init__(self, embed_dim: int, num_heads: int, **kwargs) -> None:
        super().__init__(embed_dim, num_heads, **kwargs)
        self.block_size = self.options.block_size
        # `urpe` is the name in the authors' checkpoints.
        self.urpe = LRPE(self.head_dim, self.head_dim**-0.25) if self.options.positions == "lrpe" else None
        self.norm = RMSNorm() if self.options.activation == "relu" else None

    def mix(self, x: Tensor, padding_mask: Tensor | None) -> Tensor:
        """See `Attention.mix`; everything between the projections in one call where kernels run."""
        fits = self.dropout.p < 1 and fused.runs_blocks(x, self.block_size, self.head_dim)
        if not (fits and self.has_methods_of(DiagAttention, "attend") and self.fuses(x)):
            return super().mix(x, padding_mask)

        def attend(qkv: Tensor) -> Tensor:
            (qkv,) = self._in_range(qkv)
            return joined.blocks(
                *(qkv, self.num_heads, self.urpe, None if self.causal else padding_mask),
                size=self.block_size,
                causal=self.causal,
                softmax=self.norm is None,
                dropout=self.dropout.p if drops(self.dropout) else 0.0,
            )

        return self.mix_joined(x, attend)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Tensor | None) -> Tensor:
        """See `SelfAttention.attend`."""
        q, k, v = self._in_range(q, k, v)
        q, k = self._positioned(q, k, torch.arange(q.shape[2], device=q.device) % self.block_size)
        with without_autocast(q.device):
            return attend_in_blocks(
                q, k, v, padding_mask, size=self.block_size, causal=self.causal, weigh=self._weights
            )

    def first_state(self, q: Tensor) -> State:
        """See `SelfAttention.first_state`."""
        return first_block(q, self.block_size)

    def decode(self, q: Tensor, k: Tensor, v: Tensor, new: NewTokens, state: State) -> tuple[Tensor, State]:
        """See `SelfAttention.decode`; O(C d) per token, one token in one call where kernels run."""
        q, k, v = self._in_range(q, k, v)
        fits, state = self.block_size <= LARGEST_BLOCK, in_dtype(state, q.dtype, "k", "v")
        if self.urpe is not None and fits and not drops(self.dropout) and self.steps(q):
            places, keys, values = new.places(self.block_size).flatten(), state["k"], state["v"]
            angles = self.urpe.angles(q.dtype)
            softmax = self.norm is None
            out = block_step(q, k, v, *angles, self.urpe.scale, places, keys, values, softmax)
            return out, {"k": keys, "v": values}
        places = new.places(self.block_size) % self.block_size
        q, k = self._positioned(q, k, places.unsqueeze(1))
        with without_autocast(q.device):
            return decode_in_blocks(q, k, v, new, state, size=self.block_size, weigh=self._weights)

    def _in_range(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        widened = self.norm is not None and tensors[0].dtype == torch.float16
        return tuple(x.float() for x in tensors) if widened else tensors

    def _positioned(self, q: Tensor, k: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        """Scaled and turned by their places in a block."""
        if self.urpe is None:
            return q * self.head_dim**-0.5, k
        rotations = self.urpe.table(self.block_size, q.dtype).at(places)
        return turn_both(q, k, rotations)

    def _weights(self, scores: Tensor, visible: Tensor | None) -> Tensor:
        weigh = masked_softmax if self.norm is None else relu_weights
        return self.dropout(weigh(scores, visible))
