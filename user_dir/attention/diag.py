"""DiagAttention (Qin et al. 2022, TransNormer): attention inside blocks on the diagonal. Linear cost."""

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import UserError
from ..modules import LRPE, RMSNorm
from .base import SelfAttention, new_tokens
from .registry import register_attention
from .state import State


@dataclass
class DiagOptions:
    """Options of "diag"."""

    activation: str = field(
        default="relu",
        metadata={"help": "weights: relu followed by RMSNorm (T1), or softmax (T2)"},
    )
    block_size: int = field(default=64, metadata={"help": "positions in a block"})
    positions: str = field(
        default="lrpe", metadata={"help": "positions inside a block: lrpe (rotary) or none"}
    )

    def __post_init__(self) -> None:
        if self.activation not in ("relu", "softmax"):
            raise UserError(
                f"diag attention has no activation {self.activation!r}; choose one of relu, softmax"
            )
        if self.block_size < 1:
            raise UserError(f"the block size of diag attention is {self.block_size}; it must be 1 or more")
        if self.positions not in ("lrpe", "none"):
            raise UserError(f"unknown positions {self.positions!r}; choose one of lrpe, none")


@register_attention("diag")
class DiagAttention(SelfAttention):
    """`w v` inside blocks of C positions, `w = relu(z)` (ReLA) or `softmax(z)`, `z = q k^T / sqrt(d)`.

    With ReLU the joined heads are RMS-normalised before the output map. Blocks start at the first
    token; the last one may be shorter, and only its real positions are keys (the authors' code lets zero
    rows into the bidirectional softmax). Dropout acts on w. Time O(N C d); the decoding state is one block.
    """

    Options = DiagOptions
    qkv_gain = 1.0

    def __init__(self, embed_dim: int, num_heads: int, **kwargs) -> None:
        super().__init__(embed_dim, num_heads, **kwargs)
        self.block_size = self.options.block_size
        # `urpe` is the name in the authors' checkpoints.
        self.urpe = LRPE(self.head_dim) if self.options.positions == "lrpe" else None
        self.norm = RMSNorm() if self.options.activation == "relu" else None

    def attend(self, q: Tensor, k: Tensor, v: Tensor, padding: Tensor | None) -> Tensor:
        """See `SelfAttention.attend`."""
        length = q.shape[2]
        if length == 0:
            return v
        # A single short block is left as it is; otherwise the last one is filled up.
        size = min(self.block_size, length)
        blocks = -(-length // size)
        fill = blocks * size - length
        place = torch.arange(size, device=q.device)
        q, k = self._positioned(q * self.head_dim**-0.5, k, torch.arange(length, device=q.device))
        q, k, v = (F.pad(x, (0, 0, 0, fill)).unflatten(2, (blocks, size)) for x in (q, k, v))
        visible = None
        if self.causal:
            visible = place <= place[:, None]
        elif padding is not None or fill:
            if padding is None:
                padding = torch.zeros(1, length, dtype=torch.bool, device=q.device)
            hidden = F.pad(padding, (0, fill), value=True)
            visible = ~hidden.unflatten(1, (blocks, size))[:, None, :, None, :]
        return self._attention(q, k, v, visible).flatten(2, 3)[:, :, :length]

    def first_state(self, q: Tensor) -> State:
        """See `SelfAttention.first_state`: the keys and values of one block."""
        batch, heads, _, dim = q.shape
        return {
            "k": q.new_zeros(batch, heads, self.block_size, dim),
            "v": q.new_zeros(batch, heads, self.block_size, dim),
            "position": torch.zeros(batch, dtype=torch.long, device=q.device),
        }

    def decode(
        self, q: Tensor, k: Tensor, v: Tensor, padding: Tensor | None, state: State
    ) -> tuple[Tensor, State]:
        """See `SelfAttention.decode`; O(C d) a token. Rows may stand at different places of their blocks."""
        place = state["position"][:, None] % self.block_size + torch.arange(q.shape[2], device=q.device)
        q, k = self._positioned(q * self.head_dim**-0.5, k, place[:, None])
        # A padding token is overwritten by the next one: the position does not move.
        advance = new_tokens(padding, q)
        read = self._read_one if q.shape[2] == 1 else self._read_many
        out, keys, values = read(q, k, v, place, advance, state)
        return out, {"k": keys, "v": values, "position": state["position"] + advance}

    def _read_one(self, q, k, v, place, advance, state) -> tuple[Tensor, Tensor, Tensor]:
        """One token: written to its place in the block, it sees the block up to there."""
        index = place[:, None, :, None].expand_as(k)
        keys, values = state["k"].scatter(2, index, k), state["v"].scatter(2, index, v)
        visible = torch.arange(self.block_size, device=q.device) <= place[:, None, :, None]
        return self._attention(q, keys, values, visible), keys, values

    def _read_many(self, q, k, v, place, advance, state) -> tuple[Tensor, Tensor, Tensor]:
        """Several tokens: the block begun and the new tokens make whole blocks, row by row."""
        size = self.block_size
        blocks = -(-(size - 1 + q.shape[2]) // size)
        index = place[:, None, :, None].expand_as(k)

        def laid_out(new: Tensor, begun: Tensor) -> Tensor:
            room = F.pad(begun, (0, 0, 0, (blocks - 1) * size))
            return room.scatter(2, index, new).unflatten(2, (blocks, size))

        q, keys, values = laid_out(q, state["k"]), laid_out(k, state["k"]), laid_out(v, state["v"])
        here = torch.arange(size, device=q.device)
        out = self._attention(q, keys, values, here <= here[:, None]).flatten(2, 3).gather(2, index)
        # The block that the next token goes to; past the last one when that is full, and then unread.
        current = ((place[:, 0] + advance) // size).clamp(max=blocks - 1)
        rows = torch.arange(len(current), device=q.device)
        return out, keys[rows, :, current], values[rows, :, current]

    def _positioned(self, q: Tensor, k: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        if self.urpe is None:
            return q, k
        positions = positions % self.block_size
        return self.urpe(q, positions), self.urpe(k, positions)

    def _attention(self, q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None) -> Tensor:
        scores = q @ k.transpose(-2, -1)
        if self.norm is not None:
            weights = F.relu(scores)
            if visible is not None:
                weights = weights.masked_fill(~visible, 0.0)
        else:
            if visible is not None:  # the lowest number, not -inf: a row without keys stays finite
                scores = scores.masked_fill(~visible, torch.finfo(scores.dtype).min)
            wide = torch.promote_types(scores.dtype, torch.float32)
            weights = torch.softmax(scores, dim=-1, dtype=wide).to(v.dtype)
        return self.dropout(weights) @ v

    def finish(self, x: Tensor) -> Tensor:
        """See `SelfAttention.finish`: RMSNorm over the full width when the weights are not normalised."""
        return x if self.norm is None else self.norm(x)
