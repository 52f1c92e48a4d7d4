"""Longformer (Beltagy et al. 2020): a sliding window, and a first token that sees and is seen by all."""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from .base import SelfAttention
from .parts.blocks import block_windows, join_blocks, masked_softmax, split_blocks
from .parts.limits import check_count
from .parts.weights import softmax_over_keys
from .registry import register_attention


@dataclass
class LongformerOptions:
    """Options of "longformer"."""

    window: int = field(
        default=512, metadata={"help": "window w: a token sees w/2 tokens on either side; an even number"}
    )

    def __post_init__(self) -> None:
        check_count("--longformer-window", self.window, even=True)


@register_attention("longformer")
class LongformerAttention(SelfAttention):
    """`softmax(q k^T / sqrt(d)) v` over the keys |i - j| <= w/2 and the first token.

    The first token is global: all others see it, once, also where it lies in their window; it sees all tokens
    itself, through its own query, key and value maps. Dropout acts on the weights. Bidirectional. Time O(N w
    d).
    """

    Options = LongformerOptions
    bidirectional_only = True

    def __init__(self, embed_dim: int, num_heads: int, **kwargs) -> None:
        super().__init__(embed_dim, num_heads, **kwargs)
        self.q_proj_global = nn.Linear(embed_dim, embed_dim)
        self.k_proj_global = nn.Linear(embed_dim, embed_dim)
        self.v_proj_global = nn.Linear(embed_dim, embed_dim)
        for projection in (self.q_proj_global, self.k_proj_global, self.v_proj_global):
            nn.init.xavier_uniform_(projection.weight, gain=self.qkv_gain)

    def mix(self, x: Tensor, padding_mask: Tensor | None) -> Tensor:
        """See `Attention.mix`."""
        if x.shape[0] == 0:
            return self.out_proj(x)
        local = self.attend(*self._projections(x), padding_mask)
        return self._join(torch.cat([self._global_token(x, padding_mask), local[:, :, 1:]], dim=2), x)

    def _global_token(self, x: Tensor, padding_mask: Tensor | None) -> Tensor:
        """The output of the first token, which sees all: `(B, H, 1, d)`."""
        q = self.heads(self.q_proj_global(x[:1])) * self.head_dim**-0.5
        k, v = self.heads(self.k_proj_global(x)), self.heads(self.v_proj_global(x))
        return self.dropout(softmax_over_keys(q @ k.transpose(-2, -1), padding_mask)) @ v

    def attend(self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Tensor | None) -> Tensor:
        """See `SelfAttention.attend`; the window and the first token as a key, for every query."""
        length = q.shape[2]
        # Blocks of half a window: the one before and the one after hold all that a block can see.
        reach = self.options.window // 2
        size, around = (reach, reach) if reach < length else (length, 0)
        q = split_blocks(q * self.head_dim**-0.5, size, dim=2)
        keys = block_windows(k, size, around, around, dim=2)
        values = block_windows(v, size, around, around, dim=2)
        first_score = q @ k[:, :, None, :1].transpose(-2, -1)
        scores = torch.cat([first_score, q @ keys.transpose(-2, -1)], dim=-1)
        real = q.new_ones(1, length, dtype=torch.bool) if padding_mask is None else ~padding_mask
        weights = self.dropout(masked_softmax(scores, self._visible(real, size, around)))
        out = weights[..., 1:] @ values + weights[..., :1] * v[:, :, None, :1]
        return join_blocks(out, length, dim=2)

    def _visible(self, real: Tensor, size: int, around: int) -> Tensor:
        """Which keys, the first token and the window, queries see: `(B, 1, blocks, size, 1 + window)`."""
        window = block_windows(real, size, around, around, dim=1, value=False)[:, None, :, None, :]
        query = torch.arange(size, device=real.device)[:, None]
        key = torch.arange(-around, size + around, device=real.device)
        near = (query - key).abs() <= self.options.window // 2
        block = torch.arange(window.shape[2], device=real.device)[:, None, None]
        near = near & (block * size + key != 0)  # the first token is counted outside the window
        seen = window & near
        return torch.cat([torch.ones_like(seen[..., :1]), seen], dim=-1)
