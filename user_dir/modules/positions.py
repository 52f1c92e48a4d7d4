"""Absolute positions added to the token embeddings."""

import math

import torch
from torch import Tensor, nn

from ..errors import UserError


class SinusoidalPositions(nn.Module):
    """fairseq's sinusoidal positions, sin in the first half and cos in the second, computed row by row.

    Without a table, any position costs the same (fairseq rebuilds its table when one passes the end). The
    first token has index `padding_idx + 1`, as in fairseq. Angles are float64: float32 would be wrong by up
    to 4e-3 at position 100,000.
    """

    def __init__(self, embed_dim: int, padding_idx: int) -> None:
        super().__init__()
        self.embed_dim, self.offset = embed_dim, padding_idx + 1
        half = embed_dim // 2
        steps = torch.arange(half, dtype=torch.float64, device="cpu")
        # Not a buffer, which a model in half precision would round.
        self.frequencies = torch.exp(steps * -(math.log(10000) / max(half - 1, 1)))

    def forward(self, positions: Tensor) -> Tensor:
        """Integer `positions: (B, N)`, the first token being 0, to float32 `(B, N, D)`."""
        if self.frequencies.device != positions.device:
            self.frequencies = self.frequencies.to(positions.device)
        angles = (positions + self.offset).unsqueeze(-1) * self.frequencies
        rows = torch.cat([angles.sin(), angles.cos()], dim=-1).float()
        return nn.functional.pad(rows, (0, 1)) if self.embed_dim % 2 else rows


class InterleavedPositions(nn.Module):
    """`sin(m f_j), cos(m f_j)` in channels 2j and 2j + 1, `f_j = 10000^(-2j / D)` (Vaswani et al. 2017).

    The first position is 0. Angles are float64, as in `SinusoidalPositions`.

    Args:
        embed_dim: an even width D; raises UserError for an odd one.
    """

    def __init__(self, embed_dim: int) -> None:
        super().__init__()
        if embed_dim % 2:
            raise UserError(
                f"--absolute-positions joined needs a width that is a multiple of 4, not {2 * embed_dim}"
            )
        steps = torch.arange(0, embed_dim, 2, dtype=torch.float64, device="cpu")
        # Not a buffer, which a model in half precision would round.
        self.frequencies = 10000.0 ** (-steps / embed_dim)

    def forward(self, positions: Tensor) -> Tensor:
        """Integer `positions: (B, N)` to float32 `(B, N, D)`."""
        if self.frequencies.device != positions.device:
            self.frequencies = self.frequencies.to(positions.device)
        angles = positions.unsqueeze(-1) * self.frequencies
        return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2).float()


class LearnedPositions(nn.Embedding):
    """Learned positions: one vector per position, `max_positions` of them.

    With `padding_idx` the table is fairseq's, whose first position has the row `padding_idx + 1`; with None
    it has no other rows.
    """

    def __init__(
        self, max_positions: int, embed_dim: int, padding_idx: int | None, option: str = "--max-positions"
    ) -> None:
        offset = 0 if padding_idx is None else padding_idx + 1
        super().__init__(max_positions + offset, embed_dim, padding_idx)
        self.option = option
        self.max_positions, self.offset = max_positions, offset
        nn.init.normal_(self.weight, mean=0, std=embed_dim**-0.5)
        if padding_idx is not None:
            nn.init.zeros_(self.weight[padding_idx])

    def forward(self, positions: Tensor) -> Tensor:
        """Integer `positions: (B, N)` to `(B, N, D)`; those past the end belong to padding only."""
        return super().forward((positions + self.offset).clamp(max=self.num_embeddings - 1))

    def check_length(self, length: int, padding_mask: Tensor | None = None) -> None:
        """Raises UserError for a row with more tokens than positions.

        Args:
            length: tokens of the longest row, padding included.
            padding_mask: `(B, length)`, True at padding, or None.
        """
        if length <= self.max_positions:
            return
        if padding_mask is not None:
            length = int((~padding_mask).sum(dim=1).max())
        if length > self.max_positions:
            raise UserError(
                f"a sequence of {length} tokens is longer than the {self.max_positions} learned positions "
                f"of the model; shorten it (--tokens-per-sample) or train with a larger {self.option}"
            )
