"""BigBird (Zaheer et al. 2020): blocks that see their neighbours, the ends of the row and a few others."""

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import UserError
from .base import SelfAttention, real_tokens
from .parts.blocks import block_count, gather_blocks, join_blocks, masked_softmax, split_blocks
from .parts.limits import check_count, check_length, needed_length
from .parts.sampling import new_generator
from .parts.weights import softmax_over_keys
from .registry import register_attention


@dataclass
class BigBirdOptions:
    """Options of "bigbird"."""

    block_size: int = field(default=64, metadata={"help": "positions in a block"})
    random_blocks: int = field(default=3, metadata={"help": "blocks drawn at random that each block sees"})

    def __post_init__(self) -> None:
        check_count("--bigbird-block-size", self.block_size)
        if self.random_blocks < 0:
            raise UserError(f"--bigbird-random-blocks is {self.random_blocks}; it must be 0 or more")


@register_attention("bigbird")
class BigBirdAttention(SelfAttention):
    """`softmax(q k^T / sqrt(d)) v` over blocks: 0, i - 1, i, i + 1, the row's last, and random ones.

    The first block and the row's last one with real tokens see everything. Random blocks are drawn for each
    head when the module is built, among those of the longest sequence that a block does not see anyway, and
    kept in a saved buffer; where a shorter row has no such block, or sees it already, it is left out, so
    that every key counts once (public code redraws at each call and may count a block twice). Dropout
    acts on the weights. Bidirectional. Time O(N C d) for blocks of C positions.
    """

    Options = BigBirdOptions
    bidirectional_only = True

    def __init__(self, embed_dim: int, num_heads: int, **kwargs) -> None:
        super().__init__(embed_dim, num_heads, **kwargs)
        self.longest, self.block_size = needed_length("bigbird", self.max_positions), self.options.block_size
        blocks = block_count(self.longest, self.block_size)
        drawn = draw_blocks(num_heads, blocks, self.options.random_blocks)
        self.register_buffer("random_blocks", drawn)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Tensor | None) -> Tensor:
        """See `SelfAttention.attend`."""
        length = q.shape[2]
        if length == 0:
            return v
        check_length("bigbird", length, padding_mask, self.longest)
        real = real_tokens(padding_mask, q)
        q = q * self.head_dim**-0.5
        size = min(self.block_size, length)
        blocks = [split_blocks(x, size, dim=2) for x in (q, k, v)]
        last = (real - 1).clamp(min=0) // size
        out = self._sparse(*blocks, real, last)
        # The blocks at the ends of the row see all keys.
        ends = torch.stack([torch.zeros_like(last), last], dim=1)[:, None]
        from_ends = self._from_ends(gather_blocks(blocks[0], ends), k, v, padding_mask)
        number = torch.arange(out.shape[2], device=out.device)[:, None, None]
        out = torch.where(number == last.view(-1, 1, 1, 1, 1), from_ends[:, :, 1:], out)
        out = torch.where(number == 0, from_ends[:, :, :1], out)
        return join_blocks(out, length, dim=2)

    def _sparse(self, q: Tensor, k: Tensor, v: Tensor, real: Tensor, last: Tensor) -> Tensor:
        """Attention of each block to the given blocks; all `(B, H, blocks, C, d)`."""
        seen = self._seen_blocks(q.shape[2], last)
        keys, values = (gather_blocks(x, seen.clamp(0, q.shape[2] - 1)).flatten(3, 4) for x in (k, v))
        position = seen[..., None] * q.shape[3] + torch.arange(q.shape[3], device=q.device)
        visible = (position >= 0) & (position < real.view(-1, 1, 1, 1, 1))
        visible = visible & _first_of_its_kind(seen)[..., None]
        weights = masked_softmax(q @ keys.transpose(-2, -1), visible.flatten(3)[:, :, :, None])
        return self.dropout(weights) @ values

    def _seen_blocks(self, blocks: int, last: Tensor) -> Tensor:
        """Which blocks each block sees, `(B, H, blocks, 5 + random)`; some numbers lie beyond the row."""
        own = torch.arange(blocks, device=last.device)
        fixed = torch.stack([torch.zeros_like(own), own - 1, own, own + 1], dim=-1)
        # Block 0, which all see anyway, and blocks behind the longest row stand for no random block.
        rows = self.random_blocks.shape[1]
        drawn = F.pad(self.random_blocks, (0, 0, 1, max(blocks - 1 - rows, 0)))[:, :blocks]
        shape = len(last), self.num_heads, blocks
        parts = fixed, last.view(-1, 1, 1, 1), drawn
        return torch.cat([x.expand(*shape, x.shape[-1]) for x in parts], dim=-1)

    def _from_ends(self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Tensor | None) -> Tensor:
        """Queries of whole blocks `(B, H, 2, C, d)` over all keys `(B, H, N, d)`; q's shape."""
        weights = softmax_over_keys(q.flatten(2, 3) @ k.transpose(-2, -1), padding_mask)
        return (self.dropout(weights) @ v).view_as(q)


def draw_blocks(heads: int, blocks: int, count: int) -> Tensor:
    """Random blocks for each block but the first and last, `(heads, blocks - 2, count)`, distinct in a row.

    Drawn among the blocks that are neither first, last nor neighbours, with a separate generator. Where there
    are fewer than `count`, block 0 replaces the missing ones: it is seen anyway.
    """
    own = torch.arange(1, max(blocks - 1, 1), device="cpu")[:, None]
    other = torch.arange(blocks, device="cpu")
    eligible = ((own - other).abs() > 1) & (other > 0) & (other < blocks - 1)
    chance = torch.rand(heads, len(own), blocks, generator=new_generator(), device="cpu")
    chance = chance.masked_fill(~eligible, -1.0)
    count_drawn = min(count, blocks)
    chance, drawn = chance.topk(count_drawn, dim=-1)
    return F.pad(drawn.masked_fill(chance < 0, 0), (0, count - count_drawn))


def _first_of_its_kind(numbers: Tensor) -> Tensor:
    """True where no earlier entry of the last dimension is the same."""
    same = numbers[..., :, None] == numbers[..., None, :]
    return ~same.tril(diagonal=-1).any(dim=-1)
