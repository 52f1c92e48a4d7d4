"""What the tasks of images share: their configuration, their shape in checkpoints, rows in order."""

from dataclasses import asdict, dataclass, field
from typing import Any, Optional

import numpy as np
import torch
from fairseq.dataclass import FairseqDataclass
from omegaconf import MISSING
from torch import Tensor

from .image_data import ImageShape
from .whole_rows import WholeRowsDataset, WholeRowsTask

FROM_DATA = {"help": "of the images; default: what the data folder says"}


@dataclass
class ImageTaskConfig(FairseqDataclass):
    """Configuration of a task of images."""

    data: str = field(default=MISSING, metadata={"help": "folder that data-prep/images.sh wrote"})
    levels: Optional[int] = field(default=None, metadata=FROM_DATA)
    height: Optional[int] = field(default=None, metadata=FROM_DATA)
    width: Optional[int] = field(default=None, metadata=FROM_DATA)
    channels: Optional[int] = field(default=None, metadata=FROM_DATA)


class ImageTask(WholeRowsTask):
    """A task of images of one shape."""

    def __init__(self, cfg: Any, shape: ImageShape) -> None:
        super().__init__(cfg)
        self.shape = shape

    def note_data(self, cfg: Any) -> None:
        """Write the images' shape into the configuration that checkpoints hold (ours is a copy)."""
        for name, value in asdict(self.shape).items():
            setattr(cfg, name, value)


class ImageDataset(WholeRowsDataset):
    """Images in the order of their numbers, or shuffled.

    Args:
        images: uint8 `(images, height, width, channels)`.
        tokens: of an image, which `--max-tokens` counts.
        shuffled: whether batches are drawn at random in each epoch.
    """

    def __init__(self, images: np.ndarray, tokens: int, shuffled: bool) -> None:
        super().__init__(np.full(len(images), tokens), shuffled)
        self.images = images


def stacked(samples: list[dict[str, Any]], key: str) -> Tensor:
    """The rows `key` of a batch, `(B, ...)`."""
    return torch.stack([sample[key] for sample in samples])
