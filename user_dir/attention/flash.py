"""FLASH and FLASH-quad (Hua et al. 2022): gated units, attention and feed-forward network in one."""

import math
from dataclasses import dataclass, field
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from causal_linear_attention import causal_linear_attention, linear_attention
from causal_linear_attention.chunked import accumulation_dtype

from ..modules import rotate_halves
from .base import Attention
from .linear import next_sums
from .parts.block_diagonal import attend_in_blocks, decode_in_blocks
from .parts.limits import check_count
from .parts.new_tokens import NewTokens
from .parts.state import State, append_to_cache
from .registry import register_attention

# Wider values than the kernels of the linear product hold are handed to them in pieces.
WIDEST = 128


@dataclass
class FlashQuadOptions:
    """Options of "flash_quad"."""

    key_dim: int = field(default=128, metadata={"help": "width s of queries and keys, an even number"})
    expansion: int = field(default=2, metadata={"help": "width of values and gates, in widths of the model"})
    positions: int = field(
        default=512, metadata={"help": "distances P from which on the learned position bias stays the same"}
    )

    flag = "flash-quad"

    def __post_init__(self) -> None:
        check_count(f"--{self.flag}-key-dim", self.key_dim, even=True)
        check_count(f"--{self.flag}-expansion", self.expansion)
        check_count(f"--{self.flag}-positions", self.positions)


@dataclass
class FlashOptions(FlashQuadOptions):
    """Options of "flash"."""

    chunk_size: int = field(default=64, metadata={"help": "positions in a chunk"})

    flag = "flash"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("--flash-chunk-size", self.chunk_size)


class GatedAttentionUnit(Attention):
    """`W_o (u * A v)`, `u = silu(W_u x)`, `v = silu(W_v x)`; A is made of `z = silu(W_z x)`, s wide.

    A query or key is `z` times a learned scale plus a learned shift, turned by rotary positions. One head
    whatever `num_heads` is, no softmax, no normaliser, no dropout. At padding v is zero. The authors' code
    has two vectors more, `a` and `b`, which never receive a gradient; they are left out.
    """

    replaces_feed_forward = True
    # The learned scales and shifts, by the authors' names.
    projections: tuple[str, ...] = ()

    def __init__(self, embed_dim: int, num_heads: int, **kwargs) -> None:
        super().__init__(embed_dim, num_heads, **kwargs)
        inner, key_dim = self.options.expansion * embed_dim, self.options.key_dim
        self.u_proj = nn.Linear(embed_dim, inner)
        self.v_proj = nn.Linear(embed_dim, inner)
        self.base_proj = nn.Linear(embed_dim, key_dim)
        self.o = nn.Linear(inner, embed_dim)
        for name in self.projections:
            self.register_parameter(f"{name}_weight", nn.Parameter(torch.randn(1, key_dim) * 0.02))
            self.register_parameter(f"{name}_bias", nn.Parameter(torch.zeros(1, key_dim)))
        self.w = nn.Parameter(torch.randn(2 * self.options.positions - 1) * 0.02)

    def _load_from_state_dict(self, state_dict, prefix, *args) -> None:
        for name in ("a", "b"):
            state_dict.pop(f"{prefix}{name}", None)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _parts(
        self, x: Tensor, padding_mask: Tensor | None, positions: Tensor | None = None
    ) -> tuple[Tensor, list[Tensor]]:
        """v: `(B, N, e)`, and the queries and keys `(B, N, s)` in the order of `projections`.

        `positions: (B, N)`, None for those from 0 on.
        """
        x = x.transpose(0, 1)
        v, z = F.silu(self.v_proj(x)), F.silu(self.base_proj(x))
        if padding_mask is not None:
            v = v.masked_fill(padding_mask.unsqueeze(-1), 0.0)
        if positions is None:
            positions = torch.arange(x.shape[1], device=x.device)
        scaled = (
            z * getattr(self, f"{name}_weight") + getattr(self, f"{name}_bias") for name in self.projections
        )
        return v, [rotate_halves(y, positions) for y in scaled]

    def _gated(self, x: Tensor, mixed: Tensor) -> Tensor:
        """`W_o (u * mixed)` for `mixed: (B, N, e)`; `(N, B, D)`."""
        return self.o(F.silu(self.u_proj(x)) * mixed.to(x.dtype).transpose(0, 1))

    def _bias(self, length: int) -> Tensor:
        """`w[P - 1 + j - i]` for i and j below `length`, `(length, length)`."""
        return (
            self._bias_at(torch.arange(1 - length, length, device=self.w.device)).unfold(0, length, 1).flip(0)
        )

    def _bias_at(self, offset: Tensor) -> Tensor:
        """The entries of w for offsets j - i of any shape."""
        longest = self.options.positions - 1
        return self.w[offset.clamp(-longest, longest) + longest]


@register_attention("flash_quad")
class FlashQuadAttention(GatedAttentionUnit):
    """`A = relu(q k^T / P + b)^2` with `b[i, j] = w[P - 1 + j - i]`; O(N^2 (s + e)).

    Offsets beyond P - 1 take w's ends. The decoding state is all keys and values.
    """

    Options = FlashQuadOptions
    projections = ("quad_q", "quad_k")

    def _load_from_state_dict(self, state_dict, prefix, *args) -> None:
        for name in ("q_weight", "q_bias", "k_weight", "k_bias"):  # the authors' names
            if f"{prefix}{name}" in state_dict:
                state_dict[f"{prefix}quad_{name}"] = state_dict.pop(f"{prefix}{name}")
        super()._load_from_state_dict(state_dict, prefix, *args)

    def mix(self, x: Tensor, padding_mask: Tensor | None) -> Tensor:
        """See `Attention.mix`."""
        if len(x) == 0:
            return x
        v, (q, k) = self._parts(x, padding_mask)
        weights = self._weights(q, k, self._bias(len(x)))
        return self._gated(x, (weights.tril() if self.causal else weights) @ v)

    def mix_next(self, x: Tensor, new: NewTokens, state: State | None) -> tuple[Tensor, State]:
        """See `Attention.mix_next`; O(length) time and memory per token."""
        if state is None:
            state = self._first_state(x)
        v, (q, k) = self._parts(x, new.padding_mask, new.positions)
        old, places = state["length"], new.positions
        length = old + new.count
        caches = {
            name: append_to_cache(state[name], part, old, 1)
            for name, part in (("k", k), ("v", v), ("place", places))
        }
        keys, values, seen = (caches[name][:, :length] for name in ("k", "v", "place"))
        weights = self._weights(q, keys, self._bias_at(seen[:, None, :] - places[:, :, None]))
        out = self._gated(x, weights.tril(old) @ values)
        return out, {**caches, "length": length}

    def _first_state(self, x: Tensor) -> State:
        batch = x.shape[1]
        return {
            "k": x.new_empty(batch, 0, self.options.key_dim),
            "v": x.new_empty(batch, 0, self.o.in_features),
            "place": torch.empty(batch, 0, dtype=torch.long, device=x.device),
            "length": 0,
        }

    def _weights(self, q: Tensor, k: Tensor, bias: Tensor) -> Tensor:
        return F.relu(q @ k.mT / self.options.positions + bias).square()


@register_attention("flash")
class FlashAttention(GatedAttentionUnit):
    """`relu(q k^T / C + b)^2` inside chunks of C positions, and a linear part between them.

        lin_q_i sum_j lin_k_j^T v_j / C,   j in earlier chunks; in all chunks when bidirectional

    Causal, the linear part is the plain causal product, and what that sums over the own chunk is taken off
    the weights inside the chunk. O(N (C s + C e + s e)); the decoding state is a sum, s by e, and a chunk.
    """

    Options = FlashOptions
    projections = ("quad_q", "lin_q", "quad_k", "lin_k")

    def mix(self, x: Tensor, padding_mask: Tensor | None) -> Tensor:
        """See `Attention.mix`."""
        if len(x) == 0:
            return x
        size = self.options.chunk_size
        parts = self._parts(x, padding_mask)
        with torch.autocast(x.device.type, enabled=False):
            chunked, linear = self._products(*parts)
            weigh = partial(self._weigh, bias=self._bias(min(size, len(x))))
            inside = attend_in_blocks(*chunked, None, size=size, causal=self.causal, weigh=weigh)
            if self.causal:
                outside = causal_linear_attention(*linear, backend=self.backend)
            else:
                outside = linear_attention(*linear)
        return self._gated(x, inside.squeeze(1) + outside.transpose(1, 2).flatten(2))

    def mix_next(self, x: Tensor, new: NewTokens, state: State | None) -> tuple[Tensor, State]:
        """See `Attention.mix_next`; O(C (s + e) + s e) per token."""
        size = self.options.chunk_size
        parts = self._parts(x, new.padding_mask, new.positions)
        with torch.autocast(x.device.type, enabled=False):
            chunked, linear = self._products(*parts)
            if state is None:
                state = self._first_state(*chunked, *linear)
            bias = self._bias(size)
            if len(x) == 1:  # one row of it, for each sequence its own
                bias = bias[new.places(size)].unsqueeze(1)
            weigh = partial(self._weigh, bias=bias)
            inside, chunk = decode_in_blocks(*chunked, new, state, size=size, weigh=weigh)
            outside, total = next_sums(*linear, state["sum"], backend=self.backend)
        out = self._gated(x, inside.squeeze(1) + outside.transpose(1, 2).flatten(2))
        return out, {**chunk, "sum": total}

    def _products(self, v: Tensor, parts: list[Tensor]) -> tuple[tuple, tuple]:
        """Queries, keys and values for the chunks and for the linear product, float32 for half precision.

        Chunks `(B, 1, N, ·)`, causal with the linear queries and keys as a second head. For the product the
        columns of the values are spread over heads.
        """
        wide = accumulation_dtype(v.dtype)
        v, quad_q, lin_q, quad_k, lin_k = (part.to(wide).unsqueeze(1) for part in (v, *parts))
        quad_k, lin_k = quad_k / self.options.chunk_size, lin_k / self.options.chunk_size
        q, k = quad_q, quad_k
        if self.causal:
            q, k = torch.cat([quad_q, lin_q], 1), torch.cat([quad_k, lin_k], 1)
        heads = v.shape[-1] // math.gcd(v.shape[-1], WIDEST)
        values = v.squeeze(1).unflatten(2, (heads, -1)).transpose(1, 2)
        return (q, k, v), (lin_q.expand(-1, heads, -1, -1), lin_k.expand(-1, heads, -1, -1), values)

    def _weigh(self, scores: Tensor, visible: Tensor | None, bias: Tensor) -> Tensor:
        weights = F.relu(scores[:, :1] + bias).square()
        if self.causal:
            weights = weights - scores[:, 1:]
        return weights if visible is None else weights.masked_fill(~visible, 0.0)

    def _first_state(self, q, k, v, lin_q, lin_k, values) -> State:
        batch, heads, _, columns = values.shape
        size, key_dim = self.options.chunk_size, self.options.key_dim
        return {
            "k": k.new_zeros(batch, 2, size, key_dim),
            "v": v.new_zeros(batch, 1, size, v.shape[-1]),
            "sum": values.new_zeros(batch, heads, key_dim, columns),
        }
