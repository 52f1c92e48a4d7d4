"""What the tasks of images share: their configuration, their shape in checkpoints, rows in order."""

from dataclasses import asdict, dataclass, field
from typing import Any, Optional

import numpy as np
import torch
from fairseq.data import FairseqDataset
from fairseq.dataclass import FairseqDataclass
from fairseq.tasks import FairseqTask
from omegaconf import MISSING
from torch import Tensor

from .image_data import ImageShape

FROM_DATA = {"help": "of the images; default: what the data folder says"}


@dataclass
class ImageTaskConfig(FairseqDataclass):
    """Configuration of a task of images."""

    data: str = field(default=MISSING, metadata={"help": "folder that data-prep/images.sh wrote"})
    levels: Optional[int] = field(default=None, metadata=FROM_DATA)
    height: Optional[int] = field(default=None, metadata=FROM_DATA)
    width: Optional[int] = field(default=None, metadata=FROM_DATA)
    channels: Optional[int] = field(default=None, metadata=FROM_DATA)


class ImageTask(FairseqTask):
    """A task of images of one shape."""

    def __init__(self, cfg: Any, shape: ImageShape) -> None:
        super().__init__(cfg)
        self.shape = shape

    def note_shape(self, cfg: Any) -> None:
        """Write the images' shape into the configuration that checkpoints hold (ours is a copy)."""
        for name, value in asdict(self.shape).items():
            setattr(cfg, name, value)

    def filter_indices_by_size(
        self,
        indices: np.ndarray,
        dataset: "ImageDataset",
        max_positions: Optional[int] = None,
        ignore_invalid_inputs: bool = False,
    ) -> np.ndarray:
        """All of them: images have one size, and the model has positions for it."""
        return indices

    def max_positions(self) -> None:
        """No limit but the model's."""
        return None


class ImageDataset(FairseqDataset):
    """Images in the order of their numbers, or shuffled.

    Args:
        images: uint8 `(images, height, width, channels)`.
        tokens: of an image, which `--max-tokens` counts.
        shuffled: whether batches are drawn at random in each epoch.
    """

    def __init__(self, images: np.ndarray, tokens: int, shuffled: bool) -> None:
        self.images, self.tokens, self.shuffled = images, tokens, shuffled

    def __len__(self) -> int:
        return len(self.images)

    @property
    def sizes(self) -> np.ndarray:
        """Tokens of each image."""
        return np.full(len(self), self.tokens)

    def size(self, index: int) -> int:
        """See `sizes`."""
        return self.tokens

    def num_tokens(self, index: int) -> int:
        """What `--max-tokens` counts."""
        return self.tokens

    def num_tokens_vec(self, indices: np.ndarray) -> np.ndarray:
        """`num_tokens` of several images."""
        return self.sizes[indices]

    def ordered_indices(self) -> np.ndarray:
        """The order in which batches are cut; in training a new one per epoch, by fairseq's seed for it."""
        return np.random.permutation(len(self)) if self.shuffled else np.arange(len(self))

    @property
    def can_reuse_epoch_itr_across_epochs(self) -> bool:
        """Training batches are made of other images in every epoch."""
        return not self.shuffled


def stacked(samples: list[dict[str, Any]], key: str) -> Tensor:
    """The rows `key` of a batch, `(B, ...)`."""
    return torch.stack([sample[key] for sample in samples])
