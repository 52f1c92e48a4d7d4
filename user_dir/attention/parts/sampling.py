"""Random positions that are the same in every process, and whenever a checkpoint is evaluated."""

import torch
from torch import Tensor, nn

BITS = 31


def new_generator() -> torch.Generator:
    """On the CPU, its seed one number of torch's global generator."""
    return torch.Generator("cpu").manual_seed(int(torch.randint(2**62, (), device="cpu")))


class SavedSeed:
    """A module whose draws follow from a saved seed and a number, such as the number of updates.

    All processes draw the same, although their global generators come apart with batches of different
    shapes; so does a run that is resumed. The seed is saved in two halves, since averaging checkpoints sums
    it in its own dtype.
    """

    def keep_seed(self) -> None:
        """Called when the module is built."""
        self.register_buffer("seed", _halves(torch.randint(2**62, (), device="cpu")))

    def generator(self, number: int = 0) -> torch.Generator:
        """The generator of the draws with this number, on the CPU."""
        high, low = self.seed.tolist()
        return torch.Generator("cpu").manual_seed((high << BITS) + low + number)

    def _load_from_state_dict(self, state_dict, prefix, *args) -> None:
        seed = state_dict.setdefault(f"{prefix}seed", self.seed)  # the authors' checkpoints have none
        if seed.dim() == 0:  # an older checkpoint's
            state_dict[f"{prefix}seed"] = _halves(seed)
        super()._load_from_state_dict(state_dict, prefix, *args)


def _halves(seed: Tensor) -> Tensor:
    return torch.stack([seed >> BITS, seed & (1 << BITS) - 1])


class RedrawnEachUpdate(SavedSeed):
    """A module with a saved buffer that is drawn again before each update, and fixed in evaluation."""

    _drawn_at: int | None = None

    def redraw(self, generator: torch.Generator) -> None:
        """Draw the buffer again."""
        raise NotImplementedError

    @torch.no_grad()
    def set_num_updates(self, num_updates: int) -> None:
        """Called by fairseq before each batch, and by several of a model's modules."""
        if num_updates != self._drawn_at:
            self.redraw(self.generator(num_updates))
            self._drawn_at = num_updates

    def _load_from_state_dict(self, state_dict, prefix, *args) -> None:
        super()._load_from_state_dict(state_dict, prefix, *args)
        self._drawn_at = None


class SampledPositions(RedrawnEachUpdate, nn.Module):
    """Positions drawn with replacement, uniform over the real ones of a row whatever its length.

    The draws are numbers of [0, 1) in a saved buffer: a row of n real positions takes position floor(u n).
    They are kept as integers, u 2^31, which a model in half precision leaves as they are, in int64, in which
    those of averaged checkpoints are summed.

    Args:
        sizes: the shape of the buffer.
    """

    def __init__(self, *sizes: int) -> None:
        super().__init__()
        self.keep_seed()
        self.register_buffer("draws", torch.empty(sizes, dtype=torch.int64))
        self.redraw(self.generator())

    def redraw(self, generator: torch.Generator) -> None:
        """See `RedrawnEachUpdate`."""
        draws = torch.randint(2**BITS, self.draws.shape, dtype=torch.int32, generator=generator, device="cpu")
        self.draws.copy_(draws)

    def forward(self, lengths: Tensor, *sizes: int) -> Tensor:
        """`lengths: (B,)`, real positions of each row, to positions `(B, *sizes)` out of the first draws."""
        draws = self.draws[tuple(slice(size) for size in sizes)]
        lengths = lengths.clamp(min=1).view(-1, *[1] * draws.dim())
        return draws * lengths >> BITS
