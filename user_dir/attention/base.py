"""The interface all mechanisms share: fairseq's call, heads, padding and decoding state."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..errors import UserError
from .state import DecodingState, State


@dataclass
class NoOptions:
    """For mechanisms without options of their own."""


class SelfAttention(DecodingState, nn.Module):
    """Multi-head self-attention with the call of fairseq's `MultiheadAttention`.

    A subclass says what happens between the projections: `attend` for whole sequences, `decode` for the
    next tokens of known prefixes, and `finish` for what is done to the joined heads before the output map.
    Padding is at the end of a row (models roll padding on the left away), and changes nothing for the real
    tokens; what comes out at padding is finite and meaningless.

    Args:
        embed_dim: width D.
        num_heads: heads h, a divisor of D; head width d = D / h.
        causal: a position sees itself and earlier ones only.
        dropout: on attention weights, for mechanisms that form weights.
        backend: of the linear product, for linear mechanisms.
        options: the mechanism's own.

    Raises:
        UserError: when the heads do not divide the width.
    """

    Options: type = NoOptions
    qkv_gain = 1 / math.sqrt(2)

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        causal: bool,
        dropout: float,
        backend: str,
        options: object,
    ) -> None:
        super().__init__()
        if num_heads < 1 or embed_dim % num_heads:
            raise UserError(
                f"{num_heads} attention heads do not divide the width {embed_dim}; "
                "choose a number of heads that does"
            )
        self.embed_dim, self.num_heads = embed_dim, num_heads
        self.head_dim = embed_dim // num_heads
        self.causal, self.backend, self.options = causal, backend, options
        self.dropout = nn.Dropout(dropout)
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.k_proj = nn.Linear(embed_dim, embed_dim)
        self.v_proj = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)
        for projection in (self.q_proj, self.k_proj, self.v_proj):
            nn.init.xavier_uniform_(projection.weight, gain=self.qkv_gain)
        nn.init.xavier_uniform_(self.out_proj.weight)
        nn.init.zeros_(self.out_proj.bias)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, padding: Tensor | None) -> Tensor:
        """Whole sequences: `q, k, v: (B, H, N, d)`, `padding: (B, N)` True at padding; `(B, H, N, d)`."""
        raise NotImplementedError

    def first_state(self, q: Tensor) -> State:
        """The state before the first token, for `q: (B, H, T, d)`."""
        raise NotImplementedError

    def decode(
        self, q: Tensor, k: Tensor, v: Tensor, padding: Tensor | None, state: State
    ) -> tuple[Tensor, State]:
        """The next T tokens after those `state` has seen; shapes as in `attend` with N = T."""
        raise NotImplementedError

    def finish(self, x: Tensor) -> Tensor:
        """What happens to the joined heads `(N, B, D)` before the output map."""
        return x

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        incremental_state: dict[str, State] | None = None,
        need_weights: bool = False,
        attn_mask: Tensor | None = None,
    ) -> tuple[Tensor, None]:
        """Self-attention of `query`.

        Args:
            query: `(N, B, D)`; with `incremental_state`, the next tokens only.
            key, value: None or the same tensor as `query`.
            key_padding_mask: bool `(B, N)`, True at padding.
            incremental_state: fairseq's dictionary; the module keeps its state in it (causal only).
            need_weights: accepted for fairseq; no weights are formed that could be returned.
            attn_mask: accepted when causal, where it must be the future mask, which is built in.

        Returns:
            `(N, B, D)` and None.

        Raises:
            ValueError: for another key or value, a mask that cannot be honoured, or decoding when not causal.
        """
        self._check_call(query, key, value, incremental_state, attn_mask)
        q, k, v = (self._heads(f(query)) for f in (self.q_proj, self.k_proj, self.v_proj))
        if incremental_state is None:
            out = self.attend(q, k, v, key_padding_mask)
        else:
            state = self.get_state(incremental_state) or self.first_state(q)
            out, state = self.decode(q, k, v, key_padding_mask, state)
            self.set_state(incremental_state, state)
        joined = out.permute(2, 0, 1, 3).flatten(2)
        return self.out_proj(self.finish(joined).to(query.dtype)), None

    def _heads(self, x: Tensor) -> Tensor:
        """`(N, B, D)` to `(B, H, N, d)`, a view."""
        return x.unflatten(2, (self.num_heads, self.head_dim)).permute(1, 2, 0, 3)

    def _check_call(self, query, key, value, incremental_state, attn_mask) -> None:
        if (key is not None and key is not query) or (value is not None and value is not query):
            raise ValueError("key and value must be the query itself: this is self-attention")
        if incremental_state is not None and not self.causal:
            raise ValueError("incremental_state needs a causal attention; this one is bidirectional")
        if attn_mask is not None and not self.causal:
            raise ValueError(f"{type(self).__name__} cannot apply an attn_mask; pass None")

    def extra_repr(self) -> str:
        """Shown when a model is printed."""
        return f"{self.embed_dim}, heads={self.num_heads}, causal={self.causal}, {self.options}"


def new_tokens(padding: Tensor | None, like: Tensor) -> Tensor:
    """How many real tokens each row of `like: (B, H, T, d)` brings, `(B,)`; `padding: (B, T)` or None."""
    batch, length = like.shape[0], like.shape[2]
    if padding is None:
        return torch.full((batch,), length, dtype=torch.long, device=like.device)
    return length - padding.sum(dim=1)


class ParallelAttention(nn.Module):
    """Several mechanisms side by side in one layer: the sum of their outputs (`diag+norm` in a plan)."""

    def __init__(self, parts: list[SelfAttention]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, query: Tensor, *args, **kwargs) -> tuple[Tensor, None]:
        """As `SelfAttention.forward`."""
        return sum(part(query, *args, **kwargs)[0] for part in self.parts), None
