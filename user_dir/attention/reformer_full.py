"""The bidirectional form of Reformer's attention, among tokens that are near each other when hashed."""

import torch
import torch.nn.functional as F
from torch import Tensor

from causal_linear_attention.chunked import accumulation_dtype

from .base import real_tokens
from .parts.blocks import block_count, gather_blocks, split_blocks
from .reformer_hashing import PADDING_SCORE, SELF_SCORE, HashedAttention, merge_rounds, unit_keys


class FullReformerAttention(HashedAttention):
    """LSH attention with shared queries and keys, in each of a few rounds:

        bucket = argmax [x R; -x R],  x = W_qk token;  sorted by (bucket, position), cut into chunks
        softmax(x k^T) v over the own chunk and the one before,  k = x / (rms(x) sqrt(d))

    and the rounds are merged with weights softmax(logsumexp of their scores). The chunk before the first of
    a round is the last one of the round before, in a circle. Padding is sorted behind a row's tokens and the
    circle closes over the row's own chunks, so that padding changes nothing. Dropout acts on the weights
    (the public runs had none). Time O(rounds N C d) for chunks of C tokens, the sorting, and
    O(rounds N d b) for b buckets, by default proportional to the longest sequence.
    """

    def attend(self, x: Tensor, v: Tensor, padding_mask: Tensor | None) -> Tensor:
        """See `HashedAttention.attend`."""
        length = x.shape[2]
        size = min(self.options.chunk_size, length)
        fill = block_count(length, size) * size - length
        x, v = (F.pad(y, (0, 0, 0, fill)) for y in (x, v))
        real = real_tokens(padding_mask, x[:, :, :length])
        order = self._order(x, real)
        position, before = order.flatten(2), self._chunk_before(order.shape[3] // size, real, size)
        out, mass = self._within_chunks(x, v, position, before, size, real)
        # Back to the order of the text, (B, H, rounds, N, ...), and the rounds merged.
        back = order.argsort(dim=-1)
        mass = mass.view_as(order).gather(3, back)
        out = out.view(*order.shape, v.shape[-1])
        out = out.gather(3, back[..., None].expand_as(out))
        return merge_rounds(out, mass)[:, :, :length]

    @torch.no_grad()
    def _order(self, x: Tensor, real: Tensor) -> Tensor:
        """Positions sorted by bucket, then place, padding last: `(B, H, rounds, N)`."""
        place = torch.arange(x.shape[2], device=x.device)
        bucket = torch.where(place < real.view(-1, 1, 1, 1), self.hash(x), self.buckets)
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
        keys = with_chunk_before(sorted_chunks(unit_keys(x)))
        place = split_blocks(position, size, dim=2)
        key_place = with_chunk_before(place)[..., None, :]
        scores = queries @ keys.transpose(-2, -1)
        scores = scores.to(accumulation_dtype(scores.dtype))
        scores = scores.masked_fill(key_place >= real.view(-1, 1, 1, 1, 1), PADDING_SCORE)
        scores = scores.masked_fill(key_place == place[..., None], SELF_SCORE)
        weights = self.dropout(torch.softmax(scores, dim=-1).to(v.dtype))
        return (weights @ values).flatten(2, 3), scores.logsumexp(dim=-1).flatten(2)
