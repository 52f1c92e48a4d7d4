"""The bidirectional form of Transformer-LS (Zhu et al. 2021). Linear cost."""

import torch
from torch import Tensor, nn

from ..modules import build_norm
from .base import Attention
from .parts.blocks import block_windows, join_blocks, masked_softmax, split_blocks
from .parts.limits import check_count
from .parts.weights import softmax_over_keys

WINDOW, RANK = 8, 32


class FullLongShortAttention(Attention):
    """One softmax over r pooled keys and the 2w keys around the block of w positions a query lies in.

        q = W_q x / sqrt(d);  k = LN_l(W_k x), v = LN_l(W_v x);  P = softmax over positions (W_p x)
        pooled keys LN_s(P k), pooled values LN_s(P v)

    with one LayerNorm over the full width for keys and values alike. Block b sees positions
    b w - w/2 to b w + 3w/2 - 1. Dropout acts on the weights. Time O(N (2w + r) d). Parameters carry the
    names of the authors' encoders.

    Args: as for `Attention`.
    """

    def __init__(self, embed_dim: int, num_heads: int, **kwargs) -> None:
        super().__init__(embed_dim, num_heads, **kwargs)
        self.window = self.options.window or WINDOW
        self.rank = self.options.rank or RANK
        check_count("--transformer-ls-rank", self.rank, self.max_positions)
        self.W_q, self.W_k, self.W_v, self.W_o = (nn.Linear(embed_dim, embed_dim) for _ in range(4))
        for projection in (self.W_q, self.W_k, self.W_v, self.W_o):
            nn.init.xavier_uniform_(projection.weight)
            nn.init.zeros_(projection.bias)
        self.dconv_fc = nn.Linear(embed_dim, num_heads * self.rank)
        self.dual_ln_s = build_norm("layernorm", embed_dim)
        self.dual_ln_l = build_norm("layernorm", embed_dim)

    def mix(self, x: Tensor, padding_mask: Tensor | None) -> Tensor:
        """See `Attention.mix`."""
        if x.shape[0] == 0:
            return x
        q = self.heads(self.W_q(x)) * self.head_dim**-0.5
        k, v = (self.heads(self.dual_ln_l(projection(x))) for projection in (self.W_k, self.W_v))
        pooling = self._pooling(x, padding_mask)
        pooled = self._normed(pooling @ k), self._normed(pooling @ v)
        return self.W_o(self._attend(q, (k, v), pooled, padding_mask).permute(2, 0, 1, 3).flatten(2))

    def _attend(
        self,
        q: Tensor,
        near: tuple[Tensor, Tensor],
        pooled: tuple[Tensor, Tensor],
        padding_mask: Tensor | None,
    ) -> Tensor:
        """`(B, H, N, d)` from q, keys and values of all positions `(B, H, N, d)` and pooled ones."""
        length, half = q.shape[2], self.window // 2
        near_k, near_v = (block_windows(y, self.window, half, half, dim=2) for y in near)
        pooled_k, pooled_v = pooled
        scores_near = join_blocks(split_blocks(q, self.window, dim=2) @ near_k.mT, length, dim=2)
        # Not q @ pooled_k.mT: its transposed gradient breaks LayerNorm's compiled backward (torch 2.13).
        scores = torch.cat([(pooled_k @ q.mT).mT, scores_near], -1)
        weights = self.dropout(masked_softmax(scores, self._visible(length, padding_mask, q.device)))
        far, close = weights.split([self.rank, scores_near.shape[-1]], -1)
        close = join_blocks(split_blocks(close, self.window, dim=2) @ near_v, length, dim=2)
        return far @ pooled_v + close

    def _pooling(self, x: Tensor, padding_mask: Tensor | None) -> Tensor:
        """The weights that pool keys and values, `(B, H, r, N)`."""
        scores = self.dconv_fc(x).unflatten(2, (self.num_heads, self.rank)).permute(1, 2, 3, 0)
        return softmax_over_keys(scores, padding_mask)

    def _normed(self, pooled: Tensor) -> Tensor:
        joined = self.dual_ln_s(pooled.transpose(1, 2).flatten(2))
        return joined.unflatten(2, (self.num_heads, self.head_dim)).transpose(1, 2)

    def _visible(self, length: int, padding_mask: Tensor | None, device: torch.device) -> Tensor:
        """Which of the r pooled vectors (all) and of its window a position sees, `(B or 1, 1, N, r + 2w)`."""
        if padding_mask is None:
            padding_mask = torch.zeros(1, length, dtype=torch.bool, device=device)
        half = self.window // 2
        near = block_windows(~padding_mask, self.window, half, half, dim=1, value=False)
        near = near.repeat_interleave(self.window, dim=1)[:, :length]
        pooled = near.new_ones(*near.shape[:2], self.rank)
        return torch.cat([pooled, near], -1)[:, None]
