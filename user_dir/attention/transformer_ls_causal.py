"""The causal form of Transformer-LS (Zhu et al. 2021). The cost grows with length / chunk."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from causal_linear_attention.chunked import accumulation_dtype

from ..modules import build_norm
from .base import Attention, no_positions
from .parts.blocks import block_count, block_windows, join_blocks, masked_softmax, split_blocks
from .parts.limits import check_count
from .parts.new_tokens import NewTokens
from .parts.state import State

WINDOW, RANK, CHUNK = 64, 1, 32


class CausalLongShortAttention(Attention):
    """One softmax over the last w keys and r pooled keys of every chunk of C positions before one's own.

        q = W_q x / sqrt(d),  k = W_k x,  v = W_v x
        window:  (q + u) . LN_w(k) + (q + s) . R(distance)                  distance 0 to w - 1
        pooled:  q . LN_p(P k) + q . R_c(rank)                              rank 0 for the newest one seen

    P is a softmax of W_p x inside the chunk, R and R_c are linear maps of sinusoidal positions; each
    LayerNorm is over the full width, for keys and values alike. It keeps no memory of other batches, and
    positions before the first do not exist. Dropout acts on the weights; the papers have none there. Time O(N
    (w + r N / C) d). Parameters carry the names of the authors' language models.

    Args: as for `Attention`.
    """

    def __init__(self, embed_dim: int, num_heads: int, **kwargs) -> None:
        super().__init__(embed_dim, num_heads, **kwargs)
        self.window = self.options.window or WINDOW
        self.rank, self.chunk = self.options.rank or RANK, self.options.chunk or CHUNK
        check_count("--transformer-ls-rank", self.rank, self.max_positions)
        names = ("proj_query", "proj_key", "proj_val", "proj_out", "r_net", "r_net_chunk")
        for name in names:
            projection = nn.Linear(embed_dim, embed_dim)
            nn.init.xavier_uniform_(projection.weight)
            nn.init.zeros_(projection.bias)
            setattr(self, name, projection)
        self.dconv_1 = nn.Linear(embed_dim, num_heads * self.rank)
        self.dual_ln_win = build_norm("layernorm", embed_dim)
        self.dual_ln_dproj = build_norm("layernorm", embed_dim)
        # u and s of the formula, in the authors' shapes.
        self.r_w_bias = nn.Parameter(0.02 * torch.randn(1, num_heads, 1, 1, self.head_dim))
        self.r_r_bias = nn.Parameter(0.02 * torch.randn(1, num_heads, 1, self.head_dim))

    def mix(self, x: Tensor, padding_mask: Tensor | None) -> Tensor:
        """See `Attention.mix`: the whole sequence follows an empty prefix."""
        return self.mix_next(x, NewTokens(padding_mask, no_positions(x), len(x)), None)[0]

    def mix_next(self, x: Tensor, new: NewTokens, state: State | None) -> tuple[Tensor, State]:
        """See `Attention.mix_next`; O((w + C + r N / C) d) per token. Rows may be at different positions."""
        if x.shape[0] == 0:
            return x, state or self._first_state(x)
        state = state or self._first_state(x)
        q = self.heads(self.proj_query(x)) * self.head_dim**-0.5
        k, v = self.proj_key(x), self.proj_val(x)
        near = torch.cat([self.heads(self.dual_ln_win(k)), self.heads(self.dual_ln_win(v))], -1)
        near = torch.cat([state["recent"].to(near.dtype), near], 2)
        pooled, begun = self._pool(torch.cat([k, v, self.dconv_1(x)], -1).transpose(0, 1), new, state)
        tables = tuple(table.to(q.dtype) for table in self._tables(state, pooled.shape[2]))
        out = self._attend(q, near, pooled, tables, new, state)
        # The keys and values that the next token sees are those before it; padding moves nothing.
        kept = (new.end - new.start)[:, None] + torch.arange(self.window - 1, device=x.device)
        kept = kept[:, None, :, None].expand(-1, self.num_heads, -1, near.shape[3])
        return self.proj_out(out.permute(2, 0, 1, 3).flatten(2)), {
            "recent": near.gather(2, kept),
            "begun": begun,
            "pooled": pooled,
            "length": state["length"] + x.shape[0],
            "tables": tables,
        }

    def _first_state(self, x: Tensor) -> State:
        """Keys beside values; `length` bounds all positions; `tables`, a tuple, has no rows to reorder."""
        batch, heads, both = x.shape[1], self.num_heads, 2 * self.head_dim
        return {
            "recent": x.new_zeros(batch, heads, self.window - 1, both),
            "begun": x.new_zeros(batch, self.chunk, 2 * self.embed_dim + heads * self.rank),
            "pooled": x.new_zeros(batch, heads, 0, both),
            "length": 0,
            "tables": (),
        }

    def _pool(self, vectors: Tensor, new: NewTokens, state: State) -> tuple[Tensor, Tensor]:
        """The pooled vectors with those of the chunks that `vectors: (B, T, ·)` end; the chunk begun last."""
        position, size, device = new.start, self.chunk, vectors.device
        count = block_count(size - 1 + new.count, size)
        place = new.places(size).unsqueeze(-1).expand_as(vectors)
        room = F.pad(state["begun"].to(vectors.dtype), (0, 0, 0, (count - 1) * size))
        chunks = room.scatter(1, place, vectors).unflatten(1, (count, size))
        pooled = self._pooled(chunks)
        # A chunk that is not finished is pooled, too, but not seen before it is overwritten.
        cache = _enlarged(state["pooled"].to(pooled.dtype), (state["length"] // size + count) * self.rank)
        place = (position // size * self.rank)[:, None] + torch.arange(pooled.shape[2], device=device)
        cache = cache.scatter(2, place[:, None, :, None].expand_as(pooled), pooled)
        current = ((position % size + new.end - position) // size).clamp(max=count - 1)
        return cache, chunks[torch.arange(len(chunks), device=device), current]

    def _pooled(self, chunks: Tensor) -> Tensor:
        """Keys, values, scores `(B, chunks, C, 2 D + H r)` to r vectors a chunk, `(B, H, chunks r, 2 d)`."""
        heads = (self.num_heads, -1)
        *both, scores = chunks.split([self.embed_dim, self.embed_dim, self.num_heads * self.rank], -1)
        wide = accumulation_dtype(scores.dtype)
        weights = torch.softmax(scores, 2, dtype=wide).to(scores.dtype)
        weights = weights.unflatten(3, heads).permute(0, 1, 3, 4, 2)
        sums = (weights @ x.unflatten(3, heads).transpose(2, 3) for x in both)
        normed = (self.dual_ln_dproj(x.transpose(2, 3).flatten(3)).flatten(1, 2) for x in sums)
        return torch.cat([x.unflatten(2, heads).transpose(1, 2) for x in normed], -1)

    def _tables(self, state: State, vectors: int) -> tuple[Tensor, Tensor]:
        """`R` of the distances and `R_c` of the ranks up to `vectors`, `(H, ·, d)`; kept while decoding."""
        if state["tables"] and state["tables"][1].shape[1] >= vectors:
            return state["tables"]
        return self._table(self.r_net, self.window), self._table(self.r_net_chunk, vectors)

    def _table(self, projection: nn.Linear, count: int) -> Tensor:
        device, dtype = projection.weight.device, projection.weight.dtype
        wide = accumulation_dtype(dtype)
        exponents = torch.arange(0, self.embed_dim, 2, device=device, dtype=wide) / self.embed_dim
        angles = torch.arange(count, device=device, dtype=wide)[:, None] * 10000**-exponents
        rows = torch.cat([angles.sin(), angles.cos()], -1)[:, : self.embed_dim]
        return projection(rows.to(dtype)).unflatten(1, (self.num_heads, -1)).transpose(0, 1)

    def _attend(self, q, near, pooled, tables: tuple, new: NewTokens, state: State) -> Tensor:
        """`(B, H, T, d)` of queries whose windows end in `near: (B, H, w - 1 + T, 2 d)`."""
        length = q.shape[2]
        size = min(self.window, length)
        span = self.window + size - 1
        # Blocks of queries, each with the positions that one of them sees: `(B, H, blocks, span, d)`.
        blocks = block_count(length, size)
        k, v = block_windows(near, size, 0, self.window - 1, dim=2)[:, :, :blocks].chunk(2, -1)
        scores = self._window_scores(q, k, tables[0], size)
        seen = (state["length"] + length - 1) // self.chunk * self.rank
        far_k, far_v = pooled[:, :, :seen].chunk(2, -1)
        counts = new.positions // self.chunk * self.rank
        far = self._pooled_scores(q, far_k, tables[1], counts)
        visible_far = torch.arange(seen, device=q.device) < counts.unsqueeze(-1)
        visible = torch.cat([self._visible(length, size, new.start), visible_far], -1)
        weights = self.dropout(masked_softmax(torch.cat([scores, far], -1), visible[:, None]))
        window, far = weights.split([span, seen], -1)
        return far @ far_v + join_blocks(split_blocks(window, size, dim=2) @ v, length, dim=2)

    def _window_scores(self, q: Tensor, k: Tensor, table: Tensor, size: int) -> Tensor:
        """`(B, H, T, span)`, column i of a block's row being its window's position i."""
        content = (split_blocks(q, size, dim=2) + self.r_w_bias) @ k.mT
        by_distance = split_blocks((q + self.r_r_bias) @ table.mT, size, dim=2)
        # Query i of a block sees columns i to i + w - 1, the last at distance 0: rows are moved by i, as
        # they are when read from memory in rows that are one shorter.
        span = k.shape[3]
        moved = F.pad(by_distance.flip(-1), (0, size)).flatten(-2)[..., : size * span]
        return join_blocks(content + moved.unflatten(-1, (size, span)), q.shape[2], dim=2)

    def _pooled_scores(self, q: Tensor, k: Tensor, table: Tensor, counts: Tensor) -> Tensor:
        """`(B, H, T, vectors)`; of the `counts: (B, T)` vectors that a query sees the last has rank 0."""
        vectors = k.shape[2]
        by_rank = q @ table[:, :vectors].mT
        rank = counts.unsqueeze(-1) - 1 - torch.arange(vectors, device=q.device)
        return q @ k.mT + by_rank.gather(3, rank.clamp(min=0)[:, None].expand_as(by_rank))

    def _visible(self, length: int, size: int, position: Tensor) -> Tensor:
        """`(B, T, span)`: columns that are in a query's window and not before the first position."""
        span = self.window + size - 1
        row = torch.arange(length, device=position.device)
        column, inside = torch.arange(span, device=position.device), (row % size)[:, None]
        band = (column >= inside) & (column < inside + self.window)
        place = (row - row % size)[:, None] + column - (self.window - 1)
        return band & (place >= -position[:, None, None])


def _enlarged(cache: Tensor, needed: int) -> Tensor:
    """`cache` with room for `needed` entries at dimension 2, at least doubled when it is full."""
    room = cache.shape[2]
    return cache if needed <= room else F.pad(cache, (0, 0, 0, max(needed, 2 * room) - room))
