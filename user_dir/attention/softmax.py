"""Softmax attention, the baseline (Vaswani et al. 2017). Quadratic; its decoding state grows."""

import torch
import torch.nn.functional as F
from torch import Tensor

from ..modules.dropout import drops
from .base import SelfAttention
from .parts.new_tokens import NewTokens
from .parts.state import State, append_to_cache, in_dtype
from .registry import register_attention


@register_attention("softmax")
class SoftmaxAttention(SelfAttention):
    """`softmax(q k^T / sqrt(d)) v`, with the initialisation and names of fairseq's `MultiheadAttention`."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Tensor | None) -> Tensor:
        """See `SelfAttention.attend`."""
        if self.causal:  # padding is at the end, where no real token looks
            return self._attention(q, k, v, None, is_causal=True)
        if padding_mask is None:
            return self._attention(q, k, v, None)
        visible = ~padding_mask
        # A row of padding alone sees its first position: a softmax over nothing would be NaN.
        visible = visible | (padding_mask.all(1, keepdim=True) & (padding_mask.cumsum(1) == 1))
        return self._attention(q, k, v, visible[:, None, None, :])

    def first_state(self, q: Tensor) -> State:
        """See `SelfAttention.first_state`: an empty cache, enlarged by doubling."""
        batch, heads, _, dim = q.shape
        return {
            "k": q.new_empty(batch, heads, 0, dim),
            "v": q.new_empty(batch, heads, 0, dim),
            "padding": torch.zeros(batch, 0, dtype=torch.bool, device=q.device),
            "length": 0,
            "padded": False,
        }

    def decode(self, q: Tensor, k: Tensor, v: Tensor, new: NewTokens, state: State) -> tuple[Tensor, State]:
        """See `SelfAttention.decode`; O(length) time and memory per token."""
        state = in_dtype(state, q.dtype, "k", "v")
        old, padding_mask = state["length"], new.padding_mask
        length = old + new.count
        keys, values = append_to_cache(state["k"], k, old, 2), append_to_cache(state["v"], v, old, 2)
        padded = state["padded"] or padding_mask is not None
        if padding_mask is None:
            padding_mask = q.new_zeros(q.shape[0], new.count).bool()
        padding_mask = append_to_cache(state["padding"], padding_mask, old, 1)
        mask = None
        if padded or new.count > 1:
            age = torch.arange(old, length, device=q.device)[:, None]
            place = torch.arange(length, device=q.device)
            # Every token sees itself, padding too, so that no row is without keys.
            mask = (place < age) & ~padding_mask[:, None, None, :length] | (place == age)
        out = self._attention(q, keys[:, :, :length], values[:, :, :length], mask)
        return out, {
            "k": keys,
            "v": values,
            "padding": padding_mask,
            "length": length,
            "padded": padded,
        }

    def _attention(self, q, k, v, mask, is_causal=False) -> Tensor:
        dropout = self.dropout.p if drops(self.dropout) else 0.0
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=is_causal)
