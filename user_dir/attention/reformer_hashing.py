"""Base of both forms of Reformer: projections, random planes, buckets and the merging of rounds."""

import math

import torch
from torch import Tensor, nn

from causal_linear_attention.chunked import accumulation_dtype

from .base import Attention
from .parts.limits import needed_length
from .parts.sampling import RedrawnEachUpdate

# A token sees itself only where it sees no other, and padding never; values of the public code.
SELF_SCORE = -1e5
PADDING_SCORE = -1e9
DISTANCES = 2**24  # between queries and planes that hashing holds at once


class HashedAttention(RedrawnEachUpdate, Attention):
    """Shared queries and keys `x = W_qk token`, hashed in each round to `argmax [x R; -x R]`.

    R is drawn when the module is built and kept in a saved buffer; with `redraw` it is drawn again before
    each update, and the last one stays. Without a number of buckets there are as many as the longest
    sequence needs.

    Args: as for `Attention`; the options are those of "reformer".
    """

    def __init__(self, embed_dim: int, num_heads: int, **kwargs) -> None:
        super().__init__(embed_dim, num_heads, **kwargs)
        # The names of Hugging Face's LSHSelfAttention.
        self.query_key = nn.Linear(embed_dim, embed_dim, bias=False)
        self.value = nn.Linear(embed_dim, embed_dim, bias=False)
        self.out_proj = nn.Linear(embed_dim, embed_dim)
        for projection in (self.query_key, self.value):
            nn.init.xavier_uniform_(projection.weight, gain=1 / math.sqrt(2))
        nn.init.xavier_uniform_(self.out_proj.weight)
        nn.init.zeros_(self.out_proj.bias)
        self.buckets = self.options.buckets or bucket_count(
            needed_length("reformer", self.max_positions), self.options.chunk_size
        )
        rotations = torch.randn(num_heads, self.head_dim, self.options.rounds, self.buckets // 2)
        self.register_buffer("rotations", rotations)
        self.keep_seed()

    def set_num_updates(self, num_updates: int) -> None:
        """See `RedrawnEachUpdate`; nothing without the option `redraw`."""
        if self.options.redraw:
            super().set_num_updates(num_updates)

    def redraw(self, generator: torch.Generator) -> None:
        """See `RedrawnEachUpdate`."""
        self.rotations.copy_(torch.randn(self.rotations.shape, generator=generator, device="cpu"))

    def attend(self, x: Tensor, v: Tensor, padding_mask: Tensor | None) -> Tensor:
        """Queries and keys `x` and values `v`, both `(B, H, N, d)`; the same shape."""
        raise NotImplementedError

    def mix(self, x: Tensor, padding_mask: Tensor | None) -> Tensor:
        """See `Attention.mix`."""
        if len(x) == 0:
            return self.join(self.heads(x), x)
        return self.join(self.attend(*self.projections(x), padding_mask), x)

    def projections(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and values of `x: (N, B, D)`, both `(B, H, N, d)`."""
        return self.heads(self.query_key(x)), self.heads(self.value(x))

    def join(self, out: Tensor, like: Tensor) -> Tensor:
        """`(B, H, N, d)` through the output map, `(N, B, D)` in the dtype of `like`."""
        return self.out_proj(out.permute(2, 0, 1, 3).flatten(2).to(like.dtype))

    @torch.no_grad()
    def hash(self, x: Tensor) -> Tensor:
        """The buckets `(B, H, rounds, N)` of queries `(B, H, N, d)`.

        Longer sequences have more buckets, so that the distances to all of them would be quadratic: they are
        held for a few queries at a time.
        """
        wide = accumulation_dtype(x.dtype)
        rotations = self.rotations.to(wide)
        distances = max(1, x.shape[0] * rotations[:, 0].numel())  # of a query of each sequence
        found = []
        for queries in x.split(max(1, DISTANCES // distances), dim=2):
            with torch.autocast(x.device.type, enabled=False):
                rotated = torch.einsum("bhnd,hdrk->bhrnk", queries.to(wide), rotations)
            found.append(torch.cat([rotated, -rotated], dim=-1).argmax(dim=-1))
        return torch.cat(found, dim=-1)


def merge_rounds(out: Tensor, mass: Tensor) -> Tensor:
    """The rounds' outputs `(B, H, rounds, N, d)` weighed by the softmax of `mass: (B, H, rounds, N)`.

    `mass` is the logsumexp of each round's scores. Returns `(B, H, N, d)`.
    """
    share = torch.softmax(mass, dim=2).to(out.dtype)
    return (share[..., None] * out).sum(dim=2)


def unit_keys(x: Tensor) -> Tensor:
    """Keys: x over its root mean square and sqrt(d), in float32 for half precision."""
    wide = x.to(accumulation_dtype(x.dtype))
    scale = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + 1e-6) * x.shape[-1] ** -0.5
    return (wide * scale).to(x.dtype)


def bucket_count(longest: int, chunk_size: int) -> int:
    """The largest power of two up to twice the whole chunks of the longest sequence; 2 at least."""
    return 1 << (2 * max(longest // chunk_size, 1)).bit_length() - 1
