"""Random positions that are the same whenever a checkpoint is evaluated."""

import torch
from torch import Tensor, nn

BITS = 31


class SampledPositions(nn.Module):
    """Positions drawn with replacement, uniform over the real ones of a row whatever its length.

    The draws are numbers of [0, 1) in a saved buffer: a row of n real positions takes position floor(u n).
    They are kept as integers, u 2^31, which a model in half precision leaves as they are. In training
    they are drawn again at every call, from torch's global generator, and the last ones stay.

    Args:
        sizes: the shape of the buffer.
    """

    def __init__(self, *sizes: int) -> None:
        super().__init__()
        self.register_buffer("draws", self._draw(sizes, None))

    @staticmethod
    def _draw(sizes: tuple[int, ...], device: torch.device | None) -> Tensor:
        return torch.randint(2**BITS, sizes, dtype=torch.int32, device=device)

    def forward(self, lengths: Tensor, *sizes: int) -> Tensor:
        """`lengths: (B,)`, real positions of each row, to positions `(B, *sizes)` out of the first draws."""
        if self.training:  # all of them, so that those of a row do not depend on the padding behind it
            self.draws.copy_(self._draw(self.draws.shape, self.draws.device))
        draws = self.draws[tuple(slice(size) for size in sizes)]
        lengths = lengths.clamp(min=1).view(-1, *[1] * draws.dim())
        return draws.long() * lengths >> BITS
