"""Reformer (Kitaev et al. 2020): tokens are sorted by a hash, and see those near them in that order."""

import math
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Attention, real_tokens
from .parts.blocks import block_count, gather_blocks, split_blocks
from .parts.limits import check_count, needed_length
from .registry import register_attention

# A token sees itself only where it sees no other, and padding never; values of the public code.
SELF_SCORE = -1e5
PADDING_SCORE = -1e9


@dataclass
class ReformerOptions:
    """Options of "reformer"."""

    chunk_size: int = field(default=64, metadata={"help": "tokens in a chunk of the sorted sequence"})
    rounds: int = field(default=2, metadata={"help": "independent hashings whose results are merged"})

    def __post_init__(self) -> None:
        check_count("--reformer-chunk-size", self.chunk_size)
        check_count("--reformer-rounds", self.rounds)


@register_attention("reformer")
class ReformerAttention(Attention):
    """LSH attention with shared queries and keys, in each of a few rounds:

        bucket = argmax [x R; -x R],  x = W_qk token;  sorted by (bucket, position), cut into chunks
        softmax(x k^T) v over the own chunk and the one before,  k = x / (rms(x) sqrt(d))

    and the rounds are merged with weights softmax(logsumexp of their scores). The chunk before the first of
    a round is the last one of the round before, in a circle. R is drawn when the module is built, with as
    many buckets as the longest sequence needs, and kept in a saved buffer. Padding is sorted behind a row's
    tokens and the circle closes over the row's own chunks, so that padding changes nothing. Bidirectional.
    Dropout acts on the weights (the public runs had none). Time O(rounds N C d) for chunks of C tokens,
    the sorting, and O(rounds N d b) for b buckets, b proportional to the longest sequence.
    """

    Options = ReformerOptions
    bidirectional_only = True

    def __init__(self, embed_dim: int, num_heads: int, **kwargs) -> None:
        super().__init__(embed_dim, num_heads, **kwargs)
        longest = needed_length("reformer", self.max_positions)
        # The names of Hugging Face's LSHSelfAttention.
        self.query_key = nn.Linear(embed_dim, embed_dim, bias=False)
        self.value = nn.Linear(embed_dim, embed_dim, bias=False)
        self.out_proj = nn.Linear(embed_dim, embed_dim)
        for projection in (self.query_key, self.value):
            nn.init.xavier_uniform_(projection.weight, gain=1 / math.sqrt(2))
        nn.init.xavier_uniform_(self.out_proj.weight)
        nn.init.zeros_(self.out_proj.bias)
        half = bucket_count(longest, self.options.chunk_size) // 2
        rotations = torch.randn(num_heads, self.head_dim, self.options.rounds, half)
        self.register_buffer("rotations", rotations)

    def mix(self, x: Tensor, padding: Tensor | None) -> Tensor:
        """See `Attention.mix`."""
        if x.shape[0] == 0:
            return self.out_proj(x)
        out = self._attend(self.heads(self.query_key(x)), self.heads(self.value(x)), padding)
        return self.out_proj(out.permute(2, 0, 1, 3).flatten(2).to(x.dtype))

    def _attend(self, x: Tensor, v: Tensor, padding: Tensor | None) -> Tensor:
        """Queries and keys `x` and values `v`, both `(B, H, N, d)`; the same shape."""
        length = x.shape[2]
        size = min(self.options.chunk_size, length)
        fill = block_count(length, size) * size - length
        x, v = (F.pad(y, (0, 0, 0, fill)) for y in (x, v))
        real = real_tokens(padding, x[:, :, :length])
        order = self._order(x, real)
        position, before = order.flatten(2), self._chunk_before(order.shape[3] // size, real, size)
        out, mass = self._within_chunks(x, v, position, before, size, real)
        # Back to the order of the text, (B, H, rounds, N, ...), and the rounds merged.
        back = order.argsort(dim=-1)
        mass = mass.view_as(order).gather(3, back)
        out = out.view(*order.shape, -1)
        out = out.gather(3, back[..., None].expand_as(out))
        share = torch.softmax(mass, dim=2).to(out.dtype)
        return (share[..., None] * out).sum(dim=2)[:, :, :length]

    @torch.no_grad()
    def _order(self, x: Tensor, real: Tensor) -> Tensor:
        """Positions sorted by bucket, then place, padding last: `(B, H, rounds, N)`."""
        wide = torch.promote_types(x.dtype, torch.float32)
        rotated = torch.einsum("bhnd,hdrk->bhrnk", x.to(wide), self.rotations.to(wide))
        bucket = torch.cat([rotated, -rotated], dim=-1).argmax(dim=-1)
        place = torch.arange(x.shape[2], device=x.device)
        padding_bucket = 2 * self.rotations.shape[3]
        bucket = torch.where(place < real.view(-1, 1, 1, 1), bucket, padding_bucket)
        return bucket.argsort(dim=-1, stable=True)

    def _chunk_before(self, chunks: int, real: Tensor, size: int) -> Tensor:
        """The number of the chunk in front of each, counted through all rounds: `(B, 1, rounds * chunks)`."""
        rounds = self.options.rounds
        number = torch.arange(rounds * chunks, device=real.device)
        round_before = (number // chunks - 1) % rounds
        last = ((real - 1).clamp(min=0) // size)[:, None] + round_before * chunks
        return torch.where(number % chunks == 0, last, number - 1)[:, None]

    def _within_chunks(
        self, x: Tensor, v: Tensor, position: Tensor, before: Tensor, size: int, real: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Attention of the sorted tokens, `position: (B, H, rounds * N)`.

        Returns the outputs `(B, H, rounds * N, d)` and the logsumexp of their scores, both sorted.
        """

        def sorted_chunks(y: Tensor) -> Tensor:
            index = position[..., None].expand(*position.shape, y.shape[-1])
            return split_blocks(y.gather(2, index), size, dim=2)

        def with_chunk_before(y: Tensor) -> Tensor:
            return torch.cat([gather_blocks(y, before), y], dim=3)

        queries, values = sorted_chunks(x), with_chunk_before(sorted_chunks(v))
        keys = with_chunk_before(sorted_chunks(_unit(x)))
        place = split_blocks(position, size, dim=2)
        key_place = with_chunk_before(place)[..., None, :]
        scores = queries @ keys.transpose(-2, -1)
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        scores = scores.masked_fill(key_place >= real.view(-1, 1, 1, 1, 1), PADDING_SCORE)
        scores = scores.masked_fill(key_place == place[..., None], SELF_SCORE)
        weights = self.dropout(torch.softmax(scores, dim=-1).to(v.dtype))
        return (weights @ values).flatten(2, 3), scores.logsumexp(dim=-1).flatten(2)


def _unit(x: Tensor) -> Tensor:
    """Keys: x over its root mean square and sqrt(d), in float32 for half precision."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    scale = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + 1e-6) * x.shape[-1] ** -0.5
    return (wide * scale).to(x.dtype)


def bucket_count(longest: int, chunk_size: int) -> int:
    """The largest power of two up to twice the whole chunks of the longest sequence; 2 at least."""
    return 1 << (2 * max(longest // chunk_size, 1)).bit_length() - 1
