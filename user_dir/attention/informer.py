"""Informer's ProbSparse attention (Zhou et al. 2021): exact for a few queries, a mean for the others."""

import math
from dataclasses import dataclass, field
from typing import Optional

import torch
import torch.nn.functional as F
from torch import Tensor

from causal_linear_attention.chunked import accumulation_dtype

from .base import SelfAttention, real_tokens
from .parts.limits import check_count, check_length, needed_length
from .parts.sampling import SampledPositions
from .parts.weights import softmax_over_keys
from .registry import register_attention

# Queries whose sampled keys are gathered at a time: bounds the (queries, samples, d) numbers per head.
QUERIES = 128
# The default factor: about as many queries and samples as the other methods have landmarks.
USUAL_COUNT = 128


@dataclass
class InformerOptions:
    """Options of "informer"."""

    factor: Optional[int] = field(
        default=None,
        metadata={
            "help": "f: of N queries, f ceil(ln N) are exact, chosen by as many sampled keys; "
            "default ceil(128 / ln(longest sequence))"
        },
    )

    def __post_init__(self) -> None:
        if self.factor is not None:
            check_count("--informer-factor", self.factor)


@register_attention("informer")
class InformerAttention(SelfAttention):
    """`softmax(q_i k^T / sqrt(d)) v` for the c queries with the largest score, the mean of v for the others.

        score_i = max_j (q_i . k_j) - sum_j (q_i . k_j) / N,  j among c sampled positions

    (the division by N, not c, is from the authors' code, as is c = f ceil(ln N)). N is a row's real
    length. The samples are drawn for each query, the same for all heads, and again before each
    update; evaluation keeps the last draws. No gradient goes through the choice. Dropout acts on the weights.
    Time O(N c d).
    """

    Options = InformerOptions
    bidirectional_only = True

    def __init__(self, embed_dim: int, num_heads: int, **kwargs) -> None:
        super().__init__(embed_dim, num_heads, **kwargs)
        self.longest = needed_length("informer", self.max_positions)
        if self.options.factor is not None:
            check_count("--informer-factor", self.options.factor, self.longest)
        self.factor = self.options.factor or math.ceil(USUAL_COUNT / max(math.log(self.longest), 1.0))
        self.sampled = SampledPositions(self.longest, self._count(self.longest))

    def _count(self, length: int) -> int:
        """c for a row of `length` positions."""
        return max(self.factor * math.ceil(math.log(length)), 1)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Tensor | None) -> Tensor:
        """See `SelfAttention.attend`."""
        length = q.shape[2]
        check_length("informer", length, padding_mask, self.longest)
        if length == 0:
            return v
        if length > self.longest:  # only padding is beyond
            start = self.attend(
                *(x[:, :, : self.longest] for x in (q, k, v)), padding_mask[:, : self.longest]
            )
            return F.pad(start, (0, 0, 0, length - self.longest))
        lengths = real_tokens(padding_mask, q).clamp(min=1)
        counts = (self.factor * lengths.double().log().ceil().long()).clamp(min=1)
        exact = min(self._count(length), length)
        scores = self._scores(q, k, padding_mask, lengths, counts)
        chosen = scores.sort(stable=True, descending=True).indices[..., :exact]  # topk breaks ties at will
        index = chosen.unsqueeze(-1).expand(-1, -1, -1, self.head_dim)
        scores = q.gather(2, index) @ k.mT * self.head_dim**-0.5
        attended = self.dropout(softmax_over_keys(scores, padding_mask)) @ v
        mean = _mean(v, padding_mask, lengths)
        # A short row has fewer exact queries than the longest one, the first in the order of scores.
        rank = torch.arange(exact, device=q.device)
        granted = rank < torch.minimum(counts, lengths)[:, None]
        attended = torch.where(granted[:, None, :, None], attended, mean)
        return mean.expand_as(v).scatter(2, index, attended)

    @torch.no_grad()
    def _scores(self, q, k, padding_mask, lengths, counts) -> Tensor:
        """`(B, H, N)`, -inf at padding; in float32 for half precision."""
        wide = accumulation_dtype(q.dtype)
        samples = self.sampled(lengths, q.shape[2], self._count(q.shape[2]))
        unused = (torch.arange(samples.shape[2], device=q.device) >= counts[:, None])[:, None, None]
        parts = []
        for queries, positions in zip(q.split(QUERIES, 2), samples.split(QUERIES, 1), strict=True):
            index = positions.flatten(1)[:, None, :, None].expand(-1, k.shape[1], -1, k.shape[3])
            keys = k.gather(2, index).unflatten(2, positions.shape[1:])
            products = (keys @ queries.unsqueeze(-1)).squeeze(-1).to(wide)
            total = products.masked_fill(unused, 0.0).sum(-1)
            largest = products.masked_fill(unused, -torch.inf).amax(-1)
            parts.append(largest - total / lengths[:, None, None])
        scores = torch.cat(parts, 2)
        return scores if padding_mask is None else scores.masked_fill(padding_mask[:, None], -torch.inf)


def _mean(v: Tensor, padding_mask: Tensor | None, lengths: Tensor) -> Tensor:
    """Mean over real positions, `(B, H, 1, d)`, summed in float32 for half precision."""
    if padding_mask is not None:
        v = v.masked_fill(padding_mask[:, None, :, None], 0.0)
    total = v.sum(2, keepdim=True, dtype=accumulation_dtype(v.dtype))
    return (total / lengths[:, None, None, None]).to(v.dtype)
