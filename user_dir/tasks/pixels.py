"""fairseq's task `pixels`: images as sequences of bytes (Katharopoulos et al. 2020, section 4.2)."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

import numpy as np
import torch
from fairseq.data import Dictionary
from fairseq.tasks import register_task

from ..errors import UserError
from .image_data import ImageShape, open_image_data, settle_shape
from .image_task import ImageTask, ImageTaskConfig
from .whole_rows import WholeRowsDataset


@dataclass
class PixelTaskConfig(ImageTaskConfig):
    """Configuration of `pixels`."""

    given_pixels: int = field(
        default=0, metadata={"help": "bytes at the start of an image that are given and not counted"}
    )
    tokens_per_sample: Optional[int] = field(
        default=None, metadata={"help": "bytes of an image; default: as in the data folder"}
    )
    max_target_positions: Optional[int] = field(
        default=None, metadata={"help": "positions of the model; default: --tokens-per-sample"}
    )


@register_task("pixels", dataclass=PixelTaskConfig)
class PixelTask(ImageTask):
    """A byte is a token; pixels follow each other row by row, the channels of a pixel side by side.

    Raises:
        UserError: for images of another shape than the checkpoint's, or a number of given bytes that leaves
            nothing to count.
    """

    def __init__(self, cfg: PixelTaskConfig, shape: ImageShape) -> None:
        super().__init__(cfg, shape)
        if not 0 <= cfg.given_pixels < shape.dims:
            raise UserError(
                f"--given-pixels is {cfg.given_pixels}; it must be from 0 to {shape.dims - 1}, less than the "
                "bytes of an image"
            )
        self.dictionary = Dictionary()
        for level in range(shape.levels):
            self.dictionary.add_symbol(str(level))

    @classmethod
    def setup_task(cls, cfg: PixelTaskConfig, **kwargs: Any) -> "PixelTask":
        """The task of `cfg.data`, or of the shape that `cfg` names where that folder is gone."""
        shape = settle_shape(cfg, Path(cfg.data))
        if cfg.tokens_per_sample not in (None, shape.dims):
            raise UserError(
                f"--tokens-per-sample is {cfg.tokens_per_sample}, but an image has {shape.dims} bytes; "
                "leave it out"
            )
        cfg.tokens_per_sample = shape.dims
        return cls(cfg, shape)

    def load_dataset(self, split: str, combine: bool = False, **kwargs: Any) -> None:
        """Load a split; the training split is shuffled."""
        data = open_image_data(Path(self.cfg.data))
        images = data.images(split)
        self.datasets[split] = PixelDataset(images, self.dictionary, self.cfg.given_pixels, split == "train")


class PixelDataset(WholeRowsDataset):
    """Images as tokens: the source is `eos` and all bytes but the last, the target all bytes.

    Args:
        images: uint8 `(images, height, width, channels)`.
        dictionary: special symbols, then the levels.
        given: bytes at the start whose target is padding.
        shuffled: whether batches are drawn at random in each epoch.
    """

    def __init__(self, images: np.ndarray, dictionary: Dictionary, given: int, shuffled: bool) -> None:
        self.dims = int(np.prod(images.shape[1:]))
        super().__init__(np.full(len(images), self.dims), shuffled)
        self.images, self.given = images, given
        self.eos, self.pad, self.first = dictionary.eos(), dictionary.pad(), dictionary.nspecial

    def __getitem__(self, index: int) -> dict[str, Any]:
        target = torch.from_numpy(self.images[index].astype(np.int64)).flatten() + self.first
        source = torch.cat([torch.tensor([self.eos]), target[:-1]])
        target[: self.given] = self.pad
        return {"id": index, "source": source, "target": target}

    def collated(self, samples: list[dict[str, Any]]) -> dict[str, Any]:
        """See `WholeRowsDataset.collated`; `ntokens` are the bytes that count."""
        source, target = (torch.stack([one[key] for one in samples]) for key in ("source", "target"))
        lengths = torch.full((len(samples),), self.dims)
        return {
            "net_input": {"src_tokens": source, "src_lengths": lengths},
            "target": target,
            "ntokens": len(samples) * (self.dims - self.given),
        }
