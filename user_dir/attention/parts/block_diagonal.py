"""Attention inside blocks of C positions on the diagonal, for DiagAttention and LLN+Diag. O(N C d).

Blocks start at the first token; the last one may be shorter, and only its real positions are keys. q and k
come scaled and positioned, `(B, H, N, d)`. `weigh(scores, visible)` turns the scores of blocks into weights;
`visible` broadcasts to them, None where every key is.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from .blocks import block_count, join_blocks, split_blocks
from .new_tokens import NewTokens
from .state import State, in_dtype, write_to_cache

Weigh = Callable[[Tensor, Tensor | None], Tensor]


def relu_weights(scores: Tensor, visible: Tensor | None) -> Tensor:
    """`relu(scores)`, zero where hidden (ReLA)."""
    return F.relu(scores if visible is None else torch.where(visible, scores, 0.0))


def attend_in_blocks(
    q: Tensor, k: Tensor, v: Tensor, padding_mask: Tensor | None, *, size: int, causal: bool, weigh: Weigh
) -> Tensor:
    """Whole sequences; shapes as in `SelfAttention.attend`."""
    length = q.shape[2]
    if length == 0:
        return v
    size = min(size, length)  # a single short block is left as it is
    q, k, v = (split_blocks(x, size, dim=2) for x in (q, k, v))
    visible = None
    if causal:
        visible = _up_to_itself(size, q)
    elif padding_mask is not None or length % size:
        if padding_mask is None:
            padding_mask = torch.zeros(1, length, dtype=torch.bool, device=q.device)
        visible = ~split_blocks(padding_mask, size, dim=1, value=True)[:, None, :, None, :]
    return join_blocks(_attention(q, k, v, visible, weigh), length, dim=2)


def first_block(q: Tensor, size: int) -> State:
    """The state before the first token of `q: (B, H, T, d)`: the keys and values of one block."""
    batch, heads, _, dim = q.shape
    return {
        "k": q.new_zeros(batch, heads, size, dim),
        "v": q.new_zeros(batch, heads, size, dim),
    }


def decode_in_blocks(
    q: Tensor, k: Tensor, v: Tensor, new: NewTokens, state: State, *, size: int, weigh: Weigh
) -> tuple[Tensor, State]:
    """See `SelfAttention.decode`; O(C d) per token. Rows may be at different places of their blocks.

    A padding token is overwritten by the next one.
    """
    read = _read_one if new.count == 1 else _read_many
    out, keys, values = read(q, k, v, new, in_dtype(state, k.dtype, "k", "v"), size, weigh)
    return out, {"k": keys, "v": values}


def _read_one(q, k, v, new, state, size, weigh) -> tuple[Tensor, Tensor, Tensor]:
    """One token: written to its place in the block, it sees the block up to there."""
    place = new.places(size)
    keys, values = (write_to_cache(state[name], 2, _index(place, x), x) for name, x in (("k", k), ("v", v)))
    return _attention(q, keys, values, new.visible(size), weigh), keys, values


def _read_many(q, k, v, new, state, size, weigh) -> tuple[Tensor, Tensor, Tensor]:
    """Several tokens: the block begun and the new tokens make whole blocks, row by row."""
    place = new.places(size)
    blocks = block_count(size - 1 + q.shape[2], size)

    def laid_out(new: Tensor, begun: Tensor) -> Tensor:
        room = F.pad(begun, (0, 0, 0, (blocks - 1) * size))
        return room.scatter(2, _index(place, new), new).unflatten(2, (blocks, size))

    q, keys, values = laid_out(q, state["k"]), laid_out(k, state["k"]), laid_out(v, state["v"])
    out = _attention(q, keys, values, _up_to_itself(size, q), weigh).flatten(2, 3)
    out = out.gather(2, _index(place, v))
    # The block that the next token goes to; past the last one when that is full, and then unread.
    current = ((new.start % size + new.end - new.start) // size).clamp(max=blocks - 1)
    rows = torch.arange(len(current), device=q.device)
    return out, keys[rows, :, current], values[rows, :, current]


def _index(place: Tensor, like: Tensor) -> Tensor:
    """Places `(B, T)` as an index into dimension 2, for `like: (B, H, T, d)`."""
    return place[:, None, :, None].expand_as(like)


def _up_to_itself(size: int, like: Tensor) -> Tensor:
    place = torch.arange(size, device=like.device)
    return place <= place[:, None]


def _attention(q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None, weigh: Weigh) -> Tensor:
    return weigh(q @ k.transpose(-2, -1), visible).to(v.dtype) @ v
