"""LLN+Diag attention (Nahshan et al. 2024): LLN for the whole sequence, softmax inside blocks, combined."""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from ..errors import UserError, check_choice
from .lln import LLNAttention, LLNOptions
from .parts.block_diagonal import attend_in_blocks, decode_in_blocks, first_block
from .parts.blocks import masked_softmax
from .parts.new_tokens import NewTokens
from .parts.state import State
from .registry import register_attention

COMBINATIONS = ("average", "learnable_scale", "learnable_ratio")


@dataclass
class LLNDiagOptions(LLNOptions):
    """Options of "lln_diag"."""

    combination: str = field(
        default="average",
        metadata={
            "help": "of LLN and block attention: average, learnable_scale (r * lln + p * diag) or "
            "learnable_ratio (r * lln + (1 - r) * diag), r and p a number for each head and channel"
        },
    )
    block_size: int = field(default=0, metadata={"help": "positions in a block; 0 takes the head width"})

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("LLN+Diag attention has no combination", self.combination, COMBINATIONS)
        if self.block_size < 0:
            raise UserError(
                f"the block size of LLN+Diag attention is {self.block_size}; "
                "it must be 1 or more, or 0 for the head width"
            )


@register_attention("lln_diag")
class LLNDiagAttention(LLNAttention):
    """LLN attention and `softmax(q k^T / sqrt(d))` inside blocks, on the same q, k and v.

    Dropout acts on the blocks' weights. The decoding state is LLN's and one block.
    """

    Options = LLNDiagOptions

    def __init__(self, embed_dim: int, num_heads: int, **kwargs) -> None:
        super().__init__(embed_dim, num_heads, **kwargs)
        self.block_size = self.options.block_size or self.head_dim
        shape = (1, num_heads, 1, self.head_dim)
        if self.options.combination != "average":
            self.r = nn.Parameter(torch.full(shape, 0.5))
        if self.options.combination == "learnable_scale":
            self.p = nn.Parameter(torch.full(shape, 0.5))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Tensor | None) -> Tensor:
        """See `SelfAttention.attend`."""
        q, k, v = (x.contiguous() for x in (q, k, v))  # else blocks keep separate copies for backward
        scaled = q * self.head_dim**-0.5
        diag = attend_in_blocks(
            scaled, k, v, padding_mask, size=self.block_size, causal=self.causal, weigh=self._weights
        )
        return self._combined(super().attend(q, k, v, padding_mask), diag)

    def first_state(self, q: Tensor) -> State:
        """See `SelfAttention.first_state`."""
        return {**super().first_state(q), **first_block(q, self.block_size)}

    def decode(self, q: Tensor, k: Tensor, v: Tensor, new: NewTokens, state: State) -> tuple[Tensor, State]:
        """See `SelfAttention.decode`; O(d^2 + C d) per token."""
        scaled = q * self.head_dim**-0.5
        diag, block = decode_in_blocks(scaled, k, v, new, state, size=self.block_size, weigh=self._weights)
        lln, sums = super().decode(q, k, v, new, state)
        return self._combined(lln, diag), {**sums, **block}

    def _weights(self, scores: Tensor, visible: Tensor | None) -> Tensor:
        return self.dropout(masked_softmax(scores, visible))

    def _combined(self, lln: Tensor, diag: Tensor) -> Tensor:
        if self.options.combination == "average":
            return 0.5 * (lln + diag)
        if self.options.combination == "learnable_scale":
            return self.r * lln + self.p * diag
        return self.r * lln + (1 - self.r) * diag
