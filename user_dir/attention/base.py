"""The interface all mechanisms share: fairseq's call, heads, padding and decoding state."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from fairseq.modules import FairseqDropout
from torch import Tensor, nn

from causal_linear_attention import fused
from causal_linear_attention.checks import check_mask, check_tensors
from causal_linear_attention.decoding import decodes, linear_step

from ..errors import UserError
from ..modules.linear_maps import JoinsMaps, has_hooks, is_plain
from ..modules.norms import BACKENDS_WITH_KERNELS, RMSNorm, is_plain_rms
from .parts.limits import check_count
from .parts.new_tokens import NewTokens
from .parts.state import DecodingState, State


@dataclass
class NoOptions:
    """For mechanisms without options."""


class Attention(DecodingState, nn.Module):
    """Self-attention with the call of fairseq's `MultiheadAttention`.

    A subclass computes `mix` for whole sequences and, if it has a causal form, `mix_next` for the next
    tokens of known prefixes. Padding is at the end of a row (models roll padding on the left away), and
    changes nothing for the real tokens; what comes out at padding is finite and meaningless.

    Class attributes:
        Options: the dataclass of its options; its fields become flags.
        bidirectional_only: the mechanism lacks a causal form.
        causal_only: the mechanism lacks a bidirectional form.
        replaces_feed_forward: a gated unit that is attention and feed-forward network in one.

    Args:
        embed_dim: width D.
        num_heads: heads h, a divisor of D.
        causal: a position sees itself and earlier ones only.
        dropout: on attention weights, for mechanisms that form weights.
        backend: of the causal linear product, for mechanisms that use it.
        options: an instance of `Options`.
        max_positions: the longest sequence, in tokens, for mechanisms whose parameters depend on it.
        place: the number of the layer, from 0, and how many there are, for mechanisms that differ by layer.

    Raises:
        UserError: for an invalid width, dropout or number of heads, or heads that do not divide the width.
    """

    Options: type = NoOptions
    bidirectional_only = False
    causal_only = False
    replaces_feed_forward = False

    @classmethod
    def form(cls, causal: bool) -> type["Attention"]:
        """The class to build; a mechanism whose causal and bidirectional forms differ has one for each."""
        return cls

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        causal: bool,
        dropout: float,
        backend: str,
        options: object,
        max_positions: int | None = None,
        place: tuple[int, int] = (0, 1),
    ) -> None:
        super().__init__()
        check_count("the width of an attention (embed_dim)", embed_dim)
        if not isinstance(dropout, int | float) or not 0 <= dropout <= 1:
            raise UserError(f"the dropout of an attention is {dropout!r}; it must be a number from 0 to 1")
        if not isinstance(num_heads, int) or num_heads < 1 or embed_dim % num_heads:
            divisors = ", ".join(str(n) for n in range(1, embed_dim + 1) if embed_dim % n == 0)
            raise UserError(
                f"{num_heads!r} attention heads do not divide the width {embed_dim}; "
                f"--decoder-attention-heads or --encoder-attention-heads must be one of {divisors}"
            )
        self.embed_dim, self.num_heads = embed_dim, num_heads
        self.head_dim = embed_dim // num_heads
        self.causal, self.backend, self.options = causal, backend, options
        self.max_positions, self.place = max_positions, place
        self.dropout = FairseqDropout(dropout)

    def mix(self, x: Tensor, padding_mask: Tensor | None) -> Tensor:
        """Whole sequences: `x: (N, B, D)`, `padding_mask: (B, N)` True at padding or None; `(N, B, D)`."""
        raise NotImplementedError

    def mix_next(self, x: Tensor, new: NewTokens, state: State | None) -> tuple[Tensor, State]:
        """The tokens `new` after those `state` has seen, None at the start; shapes as in `mix`.

        The state returned need not say where the next ones start.
        """
        raise NotImplementedError

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        incremental_state: dict[str, State] | None = None,
        need_weights: bool = False,
        attn_mask: Tensor | None = None,
        new_tokens: NewTokens | None = None,
    ) -> tuple[Tensor, None]:
        """Self-attention of `query`.

        Args:
            query: `(N, B, D)`; with `incremental_state`, the next tokens only.
            key, value: None or the same tensor as `query`.
            key_padding_mask: bool `(B, N)`, True at padding.
            incremental_state: fairseq's dictionary; the module keeps its state in it (causal only).
            need_weights: accepted for fairseq; no weights are formed that could be returned.
            attn_mask: None, or when causal fairseq's future mask `(N, N)`, -inf (or True) after each
                position and 0 up to it. It is built in and not applied: its shape is checked, and on the CPU
                its edges and diagonals, for on a GPU that would wait for the device at every step.
            new_tokens: shared by the layers of a decoding step; by default the module counts itself.

        Returns:
            `(N, B, D)` and None.

        Raises:
            ValueError: for a query that is not a floating `(N, B, D)` tensor of the parameters' dtype,
                another key or value, a mask that it cannot apply (UserError for another `attn_mask` than the
                future mask), or decoding when not causal.
        """
        if new_tokens is None:  # else the model has checked its input
            self._check_call(query, key, value, incremental_state, attn_mask)
        if key_padding_mask is not None:
            check_mask(key_padding_mask, query.shape[1], query.shape[0], query.device)
        if incremental_state is None or query.shape[0] == 0:
            return self.mix(query, key_padding_mask), None
        state = self.get_state(incremental_state)
        if new_tokens is None:
            start = no_positions(query) if state is None else state["position"]
            new_tokens = NewTokens(key_padding_mask, start, query.shape[0])
        out, state = self.mix_next(query, new_tokens, state)
        self.set_state(incremental_state, {**state, "position": new_tokens.end})
        return out, None

    def _check_call(self, query, key, value, incremental_state, attn_mask) -> None:
        check_tensors(query=query)
        if query.dim() != 3 or query.shape[2] != self.embed_dim:
            raise ValueError(
                f"query has shape {tuple(query.shape)}; expected (length, batch, {self.embed_dim})"
            )
        if not query.is_floating_point():
            raise ValueError(f"query has dtype {query.dtype}; expected a floating point type")
        weight = next(self.parameters(), query)
        if query.dtype != weight.dtype and not torch.is_autocast_enabled(query.device.type):
            raise ValueError(f"query has dtype {query.dtype}; expected {weight.dtype}, as the parameters")
        if (key is not None and key is not query) or (value is not None and value is not query):
            raise ValueError("key and value must be the query itself: this is self-attention")
        if incremental_state is not None and not self.causal:
            raise ValueError("incremental_state needs a causal attention; this one is bidirectional")
        if attn_mask is not None and not self.causal:
            raise ValueError(f"{type(self).__name__} cannot apply an attn_mask; pass None")
        if attn_mask is not None and not _is_future_mask(attn_mask, len(query)):
            raise UserError(
                f"attn_mask is not the future mask of {len(query)} positions, 0 up to each and -inf after "
                f"it; {type(self).__name__} can apply no other, so pass None"
            )

    def residual_step(
        self, x: Tensor, norm: nn.Module, new: NewTokens, incremental_state: dict[str, State]
    ) -> Tensor | None:
        """`x + self(norm(x))` of single tokens `x: (1, B, D)` by the kernels; None if they do not apply.

        They compute what is around a decoding step; parts that were replaced or have hooks must be called.
        """
        return None

    def has_methods_of(self, mechanism: type["Attention"], *names: str) -> bool:
        """Whether neither a subclass nor the instance replaces these methods of `mechanism`."""
        own = type(self)
        inherited = all(getattr(own, x) is getattr(mechanism, x) for x in names)
        return inherited and not any(name in self.__dict__ for name in names)

    def steps(self, q: Tensor) -> bool:
        """Whether the compiled kernels may take the single tokens `q: (B, H, 1, d)`."""
        return q.shape[2] == 1 and self.backend in BACKENDS_WITH_KERNELS and decodes(q)

    def heads(self, x: Tensor) -> Tensor:
        """`(N, B, D)` to `(B, H, N, d)`, a view; `(B, D)`, of single tokens, to `(B, H, 1, d)`."""
        if x.dim() == 2 or x.shape[0] == 1:
            return x.view(x.shape[-2], self.num_heads, 1, x.shape[-1] // self.num_heads)
        return x.unflatten(2, (self.num_heads, -1)).permute(1, 2, 0, 3)

    def extra_repr(self) -> str:
        """Shown when a model is printed."""
        return f"{self.embed_dim}, heads={self.num_heads}, causal={self.causal}, {self.options}"


def _is_future_mask(mask: Tensor, length: int) -> bool:
    """Whether `mask` hides later positions, as far as `Attention.forward` checks it."""
    if not isinstance(mask, Tensor) or mask.shape != (length, length):
        return False
    if mask.device.type != "cpu" or torch.compiler.is_compiling() or length == 0:
        return True
    seen = torch.cat([mask.diagonal(), mask[:, 0], mask[-1]])
    hidden = torch.cat([mask.diagonal(1), mask[0, 1:], mask[:-1, -1]])
    return not seen.any() and bool(hidden.eq(True if mask.dtype == torch.bool else -math.inf).all())


def no_positions(x: Tensor) -> Tensor:
    """Positions of the first tokens of `x: (N, B, D)`, `(B,)` zeros."""
    return torch.zeros(x.shape[1], dtype=torch.long, device=x.device)


class SelfAttention(JoinsMaps, Attention):
    """Multi-head attention between projections of queries, keys and values and an output map.

    A subclass says what happens between them: `attend` for whole sequences, `decode` for the next tokens
    of known prefixes, and a `norm` of the joined heads before the output map, or another `finish`.

    Args: as for `Attention`.
    """

    qkv_gain = 1 / math.sqrt(2)
    maps = ("q_proj", "k_proj", "v_proj")

    def __init__(self, embed_dim: int, num_heads: int, **kwargs) -> None:
        super().__init__(embed_dim, num_heads, **kwargs)
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.k_proj = nn.Linear(embed_dim, embed_dim)
        self.v_proj = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)
        self.norm: RMSNorm | None = None
        for projection in (self.q_proj, self.k_proj, self.v_proj):
            nn.init.xavier_uniform_(projection.weight, gain=self.qkv_gain)
        nn.init.xavier_uniform_(self.out_proj.weight)
        nn.init.zeros_(self.out_proj.bias)
        self.join_maps()

    def attend(self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Tensor | None) -> Tensor:
        """Whole sequences `(B, H, N, d)`; `padding_mask: (B, N)` True at padding or None; `(B, H, N, d)`."""
        raise NotImplementedError

    def first_state(self, q: Tensor) -> State:
        """The state before the first token, for `q: (B, H, T, d)`."""
        raise NotImplementedError(f"{type(self).__name__} has no first_state, from which decoding starts")

    def decode(self, q: Tensor, k: Tensor, v: Tensor, new: NewTokens, state: State) -> tuple[Tensor, State]:
        """The T tokens `new` after those `state` has seen; shapes as in `attend` with N = T."""
        raise NotImplementedError(f"{type(self).__name__} has no decode, which generation needs")

    def finish(self, x: Tensor) -> Tensor:
        """Applied to the joined heads `(N, B, D)` before the output map: `norm`, if there is one."""
        return x if self.norm is None else self.norm(x)

    def mix(self, x: Tensor, padding_mask: Tensor | None) -> Tensor:
        """See `Attention.mix`."""
        return self._join(self.attend(*self._projections(x), padding_mask), x)

    def fuses(self, x: Tensor) -> bool:
        """Whether kernels may take q, k and v of whole sequences `x: (N, B, D)` side by side."""
        return len(x) > 0 and self.backend in BACKENDS_WITH_KERNELS and self.plain_maps() and fused.runs(x)

    def mix_joined(self, x: Tensor, attend: Callable[[Tensor], Tensor]) -> Tensor:
        """`mix` with `attend` from q, k and v side by side, `(N, B, 3 D)`, to joined heads, `(N, B, D)`."""
        joined = attend(self.joined_maps(x))
        return self.out_proj(self.finish(joined).to(x.dtype))

    def mix_next(self, x: Tensor, new: NewTokens, state: State | None) -> tuple[Tensor, State]:
        """See `Attention.mix_next`."""
        q, k, v = self._projections(x)
        out, state = self.decode(q, k, v, new, self.first_state(q) if state is None else state)
        return self._join(out, x), state

    def residual_step(
        self, x: Tensor, norm: nn.Module, new: NewTokens, incremental_state: dict[str, State]
    ) -> Tensor | None:
        """See `Attention.residual_step`; the kernels compute what is on both sides of `decode`."""
        if self.backend not in BACKENDS_WITH_KERNELS or has_hooks(self):
            return None
        replaced = not self.has_methods_of(SelfAttention, *_AROUND_DECODE)
        if replaced or not is_plain(self.out_proj) or not (self.norm is None or is_plain_rms(self.norm)):
            return None
        if (joined := self.joined_parameters()) is None:
            return None
        inputs, eps = (x, norm.eps) if is_plain_rms(norm) else (norm(x), None)
        qkv, state = linear_step(inputs, eps, *joined, None), self.get_state(incremental_state)
        out, state = self.decode_joined(qkv, new, state)
        self.set_state(incremental_state, {**state, "position": new.end})
        norm_eps = None if self.norm is None else self.norm.eps
        return linear_step(out.reshape(x.shape), norm_eps, self.out_proj.weight, self.out_proj.bias, x)

    def decode_joined(self, qkv: Tensor, new: NewTokens, state: State | None) -> tuple[Tensor, State]:
        """`decode` of single tokens with q, k and v side by side, `(1, B, 3 D)`; no state at the start."""
        q, k, v = self._single_tokens(qkv)
        return self.decode(q, k, v, new, self.first_state(q) if state is None else state)

    def _single_tokens(self, joined: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v `(B, H, 1, d)` from those of all heads side by side."""
        return joined.view(joined.shape[-2], 3, self.num_heads, 1, self.head_dim).unbind(1)

    def _projections(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if x.shape[0] == 1 and self.plain_maps():  # a decoding step, of which every call takes its share
            return self._single_tokens(self.joined_maps(x[0]))
        q, k, v = self.separate_maps(x.squeeze(0))
        return self.heads(q), self.heads(k), self.heads(v)

    def _join(self, out: Tensor, like: Tensor) -> Tensor:
        joined = out.reshape(like.shape) if like.shape[0] == 1 else out.permute(2, 0, 1, 3).flatten(2)
        return self.out_proj(self.finish(joined).to(like.dtype))


_AROUND_DECODE = ("forward", "mix_next", "finish", "_projections", "_join")


def real_tokens(padding_mask: Tensor | None, like: Tensor) -> Tensor:
    """How many real tokens each row of `like: (B, H, N, d)` has, `(B,)`; `padding_mask: (B, N)` or None."""
    batch, length = like.shape[0], like.shape[2]
    if padding_mask is None:
        return torch.full((batch,), length, dtype=torch.long, device=like.device)
    return length - padding_mask.sum(dim=1)


class ParallelAttention(nn.Module):
    """Several mechanisms side by side in one layer: the sum of their outputs (`diag+norm` in a plan)."""

    def __init__(self, parts: list[Attention]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, query: Tensor, *args, **kwargs) -> tuple[Tensor, None]:
        """As `Attention.forward`."""
        return sum(part(query, *args, **kwargs)[0] for part in self.parts), None
