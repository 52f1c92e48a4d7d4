"""fairseq's task `image_classification`: the class of an image, from a folder of data-prep/images.sh."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

import numpy as np
import torch
from fairseq.tasks import register_task
from omegaconf import II

from ..errors import UserError, check_choice
from .augmentation import AUGMENTATIONS
from .image_data import ImageShape, open_image_data, settle_shape
from .image_task import ImageTask, ImageTaskConfig
from .whole_rows import WholeRowsDataset


@dataclass
class ImageClassificationConfig(ImageTaskConfig):
    """Configuration of `image_classification`."""

    augmentation: str = field(
        default="none",
        metadata={
            "help": "of training images: none, shift-flip (by up to an eighth of a side, half of them "
            "mirrored) or crop-flip (a random part, resized, half of them mirrored)"
        },
    )
    classes: Optional[int] = field(
        default=None, metadata={"help": "how many; default: as in the data folder"}
    )
    seed: int = II("common.seed")


@register_task("image_classification", dataclass=ImageClassificationConfig)
class ImageClassificationTask(ImageTask):
    """Images and their classes; `classes` is how many there are.

    Raises:
        UserError: for an unknown augmentation, or images of another shape or number of classes than the
            checkpoint's.
    """

    def __init__(self, cfg: ImageClassificationConfig, shape: ImageShape, classes: int) -> None:
        super().__init__(cfg, shape)
        self.classes = classes
        check_choice("--augmentation is", cfg.augmentation, AUGMENTATIONS)

    @classmethod
    def setup_task(cls, cfg: ImageClassificationConfig, **kwargs: Any) -> "ImageClassificationTask":
        """The task of `cfg.data`, or of the shape and classes that `cfg` names where that folder is gone."""
        folder = Path(cfg.data)
        shape = settle_shape(cfg, folder)
        if not folder.is_dir() and cfg.classes is not None:
            return cls(cfg, shape, cfg.classes)
        found = len(open_image_data(folder).classes)
        if cfg.classes not in (None, found):
            raise UserError(
                f"{folder} holds images of {found} classes, but the settings or the checkpoint are for "
                f"{cfg.classes}; name the folder of those"
            )
        return cls(cfg, shape, found)

    def note_data(self, cfg: Any) -> None:
        """See `ImageTask.note_data`; the number of classes, too."""
        super().note_data(cfg)
        cfg.classes = self.classes

    def load_dataset(self, split: str, combine: bool = False, **kwargs: Any) -> None:
        """Load a split; the training split is shuffled and augmented."""
        images, labels = open_image_data(Path(self.cfg.data)).labelled(split)
        training = split == "train"
        augmentation = self.cfg.augmentation if training else "none"
        self.datasets[split] = LabelledImages(images, labels, training, augmentation, self.cfg.seed)


class LabelledImages(WholeRowsDataset):
    """Images `(height, width, channels)` of levels, and their classes.

    Args:
        images: uint8 `(images, height, width, channels)`.
        labels: `(images,)`.
        shuffled: whether batches are drawn at random in each epoch.
        augmentation: a name of `AUGMENTATIONS`; its draws depend on seed, epoch and number only.
        seed: of the augmentation.
    """

    def __init__(
        self, images: np.ndarray, labels: np.ndarray, shuffled: bool, augmentation: str, seed: int
    ) -> None:
        super().__init__(np.full(len(images), images.shape[1] * images.shape[2]), shuffled)
        self.images, self.labels, self.augment = images, labels, AUGMENTATIONS[augmentation]
        self.seed, self.epoch = seed, 1

    def __getitem__(self, index: int) -> dict[str, Any]:
        generator = np.random.default_rng((self.seed, self.epoch, index))
        image = self.augment(torch.from_numpy(np.array(self.images[index])), generator)
        return {"id": index, "image": image, "label": int(self.labels[index])}

    def set_epoch(self, epoch: int) -> None:
        """The next augmentations are those of `epoch`."""
        self.epoch = epoch

    def collated(self, samples: list[dict[str, Any]]) -> dict[str, Any]:
        """See `WholeRowsDataset.collated`; `ntokens` are the pixels."""
        return {
            "net_input": {"images": torch.stack([sample["image"] for sample in samples])},
            "target": torch.tensor([sample["label"] for sample in samples]),
            "ntokens": sum(self.size(sample["id"]) for sample in samples),
        }
