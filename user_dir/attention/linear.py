"""Base of linear mechanisms: feature maps of q and k, the product, and a state of constant size."""

import torch
from torch import Tensor

from causal_linear_attention import (
    causal_linear_attention,
    causal_linear_attention_step,
    linear_attention,
)
from causal_linear_attention.chunked import accumulation_dtype

from ..modules import LRPE
from .base import SelfAttention
from .parts import joined
from .parts.new_tokens import NewTokens
from .parts.state import State


class LinearAttention(SelfAttention):
    """`phi(q_t) sum_s phi(k_s)^T v_s`, s up to t when causal; a subclass defines `features`.

    Time O(N d^2) in both forms; the decoding state is the (d, d) sum.
    """

    normalize = False

    def features(self, q: Tensor, k: Tensor, positions: Tensor | None) -> tuple[Tensor, Tensor]:
        """phi of queries and keys `(B, H, N, d)` at integer `positions: (B, N)`, None for those from 0 on."""
        raise NotImplementedError

    def joins(self) -> tuple[str | None, LRPE | None] | None:
        """The feature map and LRPE that the kernels apply to q and k; None if they cannot."""
        return None

    def mix(self, x: Tensor, padding_mask: Tensor | None) -> Tensor:
        """See `Attention.mix`; q and k become features in one call where kernels run."""
        if (found := self.joins()) is None or not self.fuses(x):
            return super().mix(x, padding_mask)

        def attend(qkv: Tensor) -> Tensor:
            if qkv.dtype == torch.float16 and not self.normalize:
                qkv = qkv.float()  # see `NormAttention.features`
            out = self._attend(*joined.features(qkv, self.num_heads, *found), padding_mask)
            return out.permute(2, 0, 1, 3).flatten(2)

        return self.mix_joined(x, attend)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Tensor | None) -> Tensor:
        """See `SelfAttention.attend`."""
        q, k = self.features(q, k, None)
        return self._attend(q, k, v.to(q.dtype), padding_mask)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Tensor | None) -> Tensor:
        if not self.causal:
            return linear_attention(q, k, v, normalize=self.normalize, padding_mask=padding_mask)
        return causal_linear_attention(q, k, v, normalize=self.normalize, backend=self.backend)

    def first_state(self, q: Tensor) -> State:
        """See `SelfAttention.first_state`."""
        batch, heads, _, dim = q.shape
        wide = accumulation_dtype(q.dtype)
        return {"sum": q.new_zeros(batch, heads, dim, dim + self.normalize, dtype=wide)}

    def decode(self, q: Tensor, k: Tensor, v: Tensor, new: NewTokens, state: State) -> tuple[Tensor, State]:
        """See `SelfAttention.decode`; O(d^2) per token."""
        q, k = self.features(q, k, new.positions)
        v = v.to(q.dtype)
        if new.padding_mask is not None:
            k = k.masked_fill(new.padding_mask[:, None, :, None], 0.0)
        out, total = next_sums(q, k, v, state["sum"], normalize=self.normalize, backend=self.backend)
        return out, {"sum": total}


def next_sums(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    total: Tensor,
    *,
    backend: str,
    log_decay: Tensor | None = None,
    **normalization,
) -> tuple[Tensor, Tensor]:
    """`causal_linear_attention` of the positions after those in `total`, one or many, and the new total."""
    options = {"log_decay": log_decay, "backend": backend, **normalization}
    if q.shape[2] != 1:
        return causal_linear_attention(q, k, v, initial_state=total, return_state=True, **options)
    if log_decay is not None and log_decay.dim() == 3:
        options["log_decay"] = log_decay.squeeze(2)
    q, k, v = q.squeeze(2), k.squeeze(2), v.squeeze(2)
    out, total = causal_linear_attention_step(q, k, v, total, **options)
    return out.unsqueeze(2), total
