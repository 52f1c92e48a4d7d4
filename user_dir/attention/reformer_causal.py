"""The causal form of Reformer's attention: a window over the tokens of the same bucket. Linear cost."""

import torch
from torch import Tensor

from causal_linear_attention.chunked import accumulation_dtype

from .parts.blocks import block_windows, split_blocks
from .parts.new_tokens import NewTokens
from .parts.state import State, in_dtype
from .reformer_hashing import PADDING_SCORE, SELF_SCORE, HashedAttention, merge_rounds, unit_keys


class CausalReformerAttention(HashedAttention):
    """In each round a token sees the last w tokens of its own bucket up to itself:

        softmax over these of x k^T,  k = x / (rms(x) sqrt(d)),  its own score being -1e5

    and the rounds are merged with weights softmax(logsumexp of their scores). What a token sees depends on
    earlier tokens only; the public causal form sorts the whole sequence into chunks, so that later tokens
    decide who shares one. Tokens are sorted by (bucket, position) and cut into chunks of w; each chunk is
    compared with itself and the one before, which hold every window. Dropout acts on the weights. Time
    O(rounds N w d) and the sorting; the decoding state is w keys and values per head, round and bucket.
    """

    def attend(self, q: Tensor, v: Tensor, padding_mask: Tensor | None) -> Tensor:
        """See `HashedAttention.attend`."""
        place = torch.arange(q.shape[2], device=q.device)
        bucket = self._hide(self.hash(q), padding_mask)
        rounds = self.options.rounds
        q, k, v = (y.unsqueeze(2).expand(-1, -1, rounds, -1, -1) for y in (q, unit_keys(q), v))
        return merge_rounds(*self._in_windows(q, k, v, bucket, _order(bucket, place)))

    def mix_next(self, x: Tensor, new: NewTokens, state: State | None) -> tuple[Tensor, State]:
        """See `Attention.mix_next`; O(rounds w d) for one token."""
        q, v = self.projections(x)
        state = self._first_state(q) if state is None else in_dtype(state, q.dtype, "k", "v")
        if len(x) == 1 and new.padding_mask is None:
            out = self._step(q, v, new, state)
        else:
            out, state = self._read(q, v, new, state)
        return self.join(out, x), state

    def _first_state(self, q: Tensor) -> State:
        """Empty windows: keys and values `(B, H, rounds, buckets, w, d)` and their places, -1 for none."""
        sizes = (*q.shape[:2], self.options.rounds, self.buckets, self.options.chunk_size)
        k, v = (q.new_zeros(*sizes, self.head_dim) for _ in range(2))
        return {"k": k, "v": v, "place": torch.full(sizes, -1, device=q.device)}

    def _step(self, q: Tensor, v: Tensor, new: NewTokens, state: State) -> Tensor:
        """One token per row, `q, v: (B, H, 1, d)`, which takes the oldest place of its bucket's window."""
        at = self.hash(q)[..., None]  # (B, H, rounds, 1, 1)
        own = at.expand(*at.shape[:4], self.options.chunk_size)
        position = new.positions.view(-1, 1, 1, 1, 1).expand_as(at)
        slot = state["place"].gather(3, own).argmin(dim=-1, keepdim=True)
        batch, head, round_ = (
            torch.arange(size, device=q.device).view(-1, *[1] * (2 - dim))
            for dim, size in enumerate(at.shape[:3])
        )
        index = batch, head, round_, at[..., 0, 0], slot[..., 0, 0]
        state["k"][index] = unit_keys(q).expand(-1, -1, self.options.rounds, -1)
        state["v"][index] = v.expand(-1, -1, self.options.rounds, -1)
        state["place"][index] = position[..., 0, 0]
        place, keys, values = (state[name][index[:4]] for name in ("place", "k", "v"))
        scores = (keys @ q.transpose(-2, -1).unsqueeze(2)).transpose(-2, -1)  # (B, H, rounds, 1, w)
        scores = _seen(scores, (place >= 0).unsqueeze(3), (place == position[..., 0]).unsqueeze(3))
        weights = self.dropout(torch.softmax(scores, dim=-1).to(v.dtype))
        return merge_rounds(weights @ values, scores.logsumexp(dim=-1))

    def _read(self, q: Tensor, v: Tensor, new: NewTokens, state: State) -> tuple[Tensor, State]:
        """Several tokens `q, v: (B, H, T, d)` after the windows of `state`; O(T + buckets w) a round."""
        size, count = self.options.chunk_size, new.count
        kept = state["place"].flatten(3)
        bucket = torch.arange(self.buckets, device=q.device).repeat_interleave(size)
        bucket = torch.where(kept >= 0, bucket, self.buckets)
        place = new.positions.expand(-1, count)[:, None, None].expand(*kept.shape[:3], count)
        q, k, v = (y.unsqueeze(2).expand(-1, -1, kept.shape[2], -1, -1) for y in (q, unit_keys(q), v))
        bucket = torch.cat([bucket, self._hide(self.hash(q[:, :, 0]), new.padding_mask)], dim=3)
        place = torch.cat([kept, place], dim=3)
        k, v = (torch.cat([state[name].flatten(3, 4), y], dim=3) for name, y in (("k", k), ("v", v)))
        # The queries of the kept tokens do not matter.
        q = torch.cat([torch.zeros_like(k[:, :, :, :-count]), q], dim=3)
        order = _order(bucket, place)
        out, mass = self._in_windows(q, k, v, bucket, order)
        out = merge_rounds(out[:, :, :, -count:], mass[:, :, :, -count:])
        return out, self._last_of_each_bucket(k, v, bucket, place, order)

    def _last_of_each_bucket(
        self, k: Tensor, v: Tensor, bucket: Tensor, place: Tensor, order: Tensor
    ) -> State:
        number = torch.arange(self.buckets, device=k.device).expand(*bucket.shape[:3], -1).contiguous()
        ascending = bucket.gather(3, order)
        first, end = (torch.searchsorted(ascending, number, right=right) for right in (False, True))
        rank = end[..., None] - 1 - torch.arange(self.options.chunk_size, device=k.device)
        index = order.gather(3, rank.clamp(min=0).flatten(3))
        place = place.gather(3, index).view_as(rank).masked_fill(rank < first[..., None], -1)
        # Clones: `_step` writes to them, which autograd forbids for views that were made without it.
        k, v = (_rows(y, index).unflatten(3, rank.shape[3:]).clone() for y in (k, v))
        return {"k": k, "v": v, "place": place}

    def _hide(self, bucket: Tensor, padding_mask: Tensor | None) -> Tensor:
        """Padding moves to a separate bucket, behind all others."""
        if padding_mask is None:
            return bucket
        return bucket.masked_fill(padding_mask[:, None, None], self.buckets)

    def _in_windows(
        self, q: Tensor, k: Tensor, v: Tensor, bucket: Tensor, order: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Attention inside the windows of `q, k, v: (B, H, rounds, N, d)`, sorted by `order`.

        Returns outputs of that shape and the logsumexp of the scores, `(B, H, rounds, N)`.
        """
        length = order.shape[3]
        size = min(self.options.chunk_size, length)
        bucket = bucket.gather(3, order)
        q, k, v = (_rows(y, order) for y in (q, k, v))
        k, v, others = (block_windows(y, size, size, 0, dim=3, value=-1) for y in (k, v, bucket))
        scores = split_blocks(q, size, dim=3) @ k.transpose(-2, -1)
        age = torch.arange(size, device=q.device)[:, None] + size - torch.arange(2 * size, device=q.device)
        own = split_blocks(bucket, size, dim=3, value=-1)
        seen = (own[..., None] == others[..., None, :]) & (age >= 0) & (age < size)
        scores = _seen(scores, seen, age == 0)
        weights = self.dropout(torch.softmax(scores, dim=-1).to(v.dtype))
        out = (weights @ v).flatten(3, 4)[:, :, :, :length]
        mass = scores.logsumexp(dim=-1).flatten(3)[..., :length]
        back = order.argsort(dim=-1)
        return _rows(out, back), mass.gather(3, back)


def _order(bucket: Tensor, place: Tensor) -> Tensor:
    """The order by (bucket, place) of integers `(B, H, rounds, N)`."""
    return ((bucket << 32) + place).argsort(dim=-1)


def _rows(x: Tensor, index: Tensor) -> Tensor:
    """Rows of `x: (B, H, rounds, N, d)` by number, `index: (B, H, rounds, M)`."""
    return x.gather(3, index[..., None].expand(*index.shape, x.shape[-1]))


def _seen(scores: Tensor, visible: Tensor, itself: Tensor) -> Tensor:
    """Scores, in float32 for half precision, of visible tokens; -1e9 elsewhere, -1e5 for the token itself."""
    scores = scores.to(accumulation_dtype(scores.dtype))
    return scores.masked_fill(~visible, PADDING_SCORE).masked_fill(itself, SELF_SCORE)
