"""Linformer (Wang et al. 2020): keys and values projected to a fixed number of slots. Bidirectional."""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from ..errors import check_choice
from .base import SelfAttention
from .parts.limits import check_count, check_length, needed_length
from .parts.weights import softmax_over_keys
from .registry import register_attention

PROJECTIONS = ("heads", "separate", "shared")


@dataclass
class LinformerOptions:
    """Options of "linformer"."""

    rank: int = field(default=128, metadata={"help": "slots r that keys and values are projected to"})
    projection: str = field(
        default="heads",
        metadata={
            "help": "heads: one matrix per head for keys and values alike; separate or shared: two "
            "matrices or one for all heads, applied before the projections of keys and values "
            "(fairseq's form)"
        },
    )

    def __post_init__(self) -> None:
        check_count("--linformer-rank", self.rank)
        check_choice("--linformer-projection is", self.projection, PROJECTIONS)


@register_attention("linformer")
class LinformerAttention(SelfAttention):
    """`softmax(q (E k)^T / sqrt(d)) (F v)`, E and F of shape (r, longest sequence), cut to N columns.

    Padding is zeroed before E and F; the slots are not positions, so the softmax has no mask. Dropout acts
    on its weights. Time O(N r d); no sequence may be longer than `max_positions`.
    """

    Options = LinformerOptions
    bidirectional_only = True

    def __init__(self, embed_dim: int, num_heads: int, **kwargs) -> None:
        super().__init__(embed_dim, num_heads, **kwargs)
        self.longest, rank = needed_length("linformer", self.max_positions), self.options.rank
        check_count("--linformer-rank", rank, self.longest)
        if self.options.projection == "heads":
            self.E = nn.Parameter(torch.empty(num_heads, rank, self.longest))
            nn.init.normal_(self.E, std=0.02)
            return
        # fairseq's names and initialisation; shared, they are one module under the first name.
        self.compress_k = self._compression()
        if self.options.projection == "separate":
            self.compress_v = self._compression()

    def _compression(self) -> nn.Linear:
        layer = nn.Linear(self.longest, self.options.rank, bias=False)
        nn.init.xavier_uniform_(layer.weight, gain=self.qkv_gain)
        return layer

    def attend(self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Tensor | None) -> Tensor:
        """See `SelfAttention.attend`; for matrices behind the projections, one per head."""
        check_length("linformer", q.shape[2], padding_mask, self.longest)
        if padding_mask is not None:
            k, v = (x.masked_fill(padding_mask[:, None, :, None], 0.0) for x in (k, v))
        k, v = k[:, :, : self.longest], v[:, :, : self.longest]
        slots = self.E[:, :, : k.shape[2]]
        return self._over_slots(q, slots @ k, slots @ v)

    def mix(self, x: Tensor, padding_mask: Tensor | None) -> Tensor:
        """See `Attention.mix`."""
        if self.options.projection == "heads":
            return super().mix(x, padding_mask)
        check_length("linformer", len(x), padding_mask, self.longest)
        real = x if padding_mask is None else x.masked_fill(padding_mask.t().unsqueeze(-1), 0.0)
        real = real[: self.longest]
        compress_v = self.compress_k if self.options.projection == "shared" else self.compress_v
        k, v = (
            torch.einsum("rn,nbd->rbd", compress.weight[:, : len(real)], real)
            for compress in (self.compress_k, compress_v)
        )
        out = self._over_slots(*(self.heads(y) for y in (self.q_proj(x), self.k_proj(k), self.v_proj(v))))
        return self._join(out, x)

    def _over_slots(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q @ k.mT * self.head_dim**-0.5
        return self.dropout(softmax_over_keys(scores, None)) @ v
