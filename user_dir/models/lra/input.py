"""From tokens or pixels to the vectors that enter the layers."""

from typing import Any

import torch
from torch import Tensor, nn

from ...errors import UserError, check_choice
from ...modules import LearnedPositions, SinusoidalPositions
from ..stack import positions_kind

GREY_VALUES = 256


class TokenTable(nn.Embedding):
    """A vector for each dictionary entry but `<s>`, which the benchmark does not use."""

    def forward(self, tokens: Tensor) -> Tensor:
        """`(B, N)` dictionary indices to `(B, N, D)`."""
        return super().forward(tokens - 1)


class PixelTable(nn.Embedding):
    """A vector per grey value."""

    def forward(self, pixels: Tensor) -> Tensor:
        """`(B, N)` grey values to `(B, N, D)`."""
        return super().forward(pixels.long())


class PixelProjection(nn.Linear):
    """`W (p - mean) / std + b` of a grey value p.

    Args:
        width: D.
        mean, std: in grey values, 0 to 255.
    """

    def __init__(self, width: int, mean: float, std: float) -> None:
        super().__init__(1, width)
        self.mean, self.std = mean, std

    def forward(self, pixels: Tensor) -> Tensor:
        """`(B, N)` grey values to `(B, N, D)`."""
        value = (pixels.float() - self.mean) / self.std
        return super().forward(value.unsqueeze(-1).to(self.weight.dtype))


class LRAInput(nn.Module):
    """Embedding plus positions.

    Args:
        cfg: an `LRAConfig` with its `max_positions` filled in.
        dictionary: fairseq's dictionary, None for pixels.

    Raises:
        UserError: for an unknown kind of input, or a table with fewer rows than symbols.
    """

    def __init__(self, cfg: Any, dictionary: Any | None) -> None:
        super().__init__()
        width = cfg.encoder_embed_dim
        std = width**-0.5 if cfg.embedding_std is None else cfg.embedding_std
        self.values = _value_embedding(cfg, dictionary)
        if isinstance(self.values, nn.Embedding):
            nn.init.normal_(self.values.weight, std=std)
        self.positions = None
        kind = positions_kind(cfg, "learned", "sinusoidal", "none")
        if kind == "learned":
            self.positions = LearnedPositions(cfg.max_positions, width, padding_idx=None)
            nn.init.normal_(self.positions.weight, std=std)
        elif kind == "sinusoidal":
            self.positions = SinusoidalPositions(width, padding_idx=-1)

    def forward(self, values: Tensor) -> Tensor:
        """`(B, N)` tokens or pixels to `(B, N, D)`."""
        x = self.values(values)
        if self.positions is None:
            return x
        places = torch.arange(values.shape[1], device=values.device)
        return x + self.positions(places.unsqueeze(0)).to(x.dtype)


def _value_embedding(cfg: Any, dictionary: Any | None) -> nn.Module:
    width = cfg.encoder_embed_dim
    check_choice("--pixel-input is", cfg.pixel_input, ("embedding", "linear"))
    if dictionary is None and cfg.pixel_input == "linear":
        if cfg.pixel_std <= 0:
            raise UserError(f"--pixel-std is {cfg.pixel_std}; it must be positive")
        return PixelProjection(width, cfg.pixel_mean, cfg.pixel_std)
    needed = GREY_VALUES if dictionary is None else len(dictionary) - 1
    rows = needed if cfg.vocabulary_size is None else cfg.vocabulary_size
    if rows < needed:
        raise UserError(f"--vocabulary-size is {rows}, but the data have {needed} symbols")
    return (PixelTable if dictionary is None else TokenTable)(rows, width)
