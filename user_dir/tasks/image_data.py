"""A folder that data-prep/images.sh wrote: images of one size, and their classes."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from conventions import PREPARED
from conventions.files import check_no_pipe

from ..errors import UserError
from .arrays import load_array, load_labels

PREPARE = "prepare it again with data-prep/images.sh"


@dataclass(frozen=True)
class ImageShape:
    """Size of the images; a byte is one of `levels` levels of a channel."""

    levels: int
    height: int
    width: int
    channels: int

    @property
    def dims(self) -> int:
        """Bytes of an image, N."""
        return self.height * self.width * self.channels

    def __str__(self) -> str:
        return f"{self.height} x {self.width} x {self.channels} of {self.levels} levels"


@dataclass(frozen=True)
class ImageData:
    """Prepared images; `manifest` is their `preparation.json`."""

    folder: Path
    shape: ImageShape
    manifest: dict[str, Any]

    def images(self, split: str) -> np.ndarray:
        """The images of a split, uint8 `(images, height, width, channels)`, mapped from the disk.

        Raises UserError for a split that is missing, empty or damaged, or has a level out of range.
        """
        if split not in self.manifest["splits"]:
            known = ", ".join(self.manifest["splits"])
            raise UserError(f"the data folder {self.folder} has no split {split}; it has {known}")
        shape, path = self.shape, self.folder / f"{split}.images.npy"
        images = load_array(self.folder, path.name, PREPARE, mmap_mode="r")
        expected = (shape.height, shape.width, shape.channels)
        if images.dtype != np.uint8 or images.shape[1:] != expected:
            raise UserError(
                f"{path} holds {images.dtype} of shape {images.shape}; expected uint8 of shape "
                f"(images, {', '.join(map(str, expected))}); {PREPARE}"
            )
        if not len(images):
            raise UserError(f"{path} holds no image; {PREPARE}")
        if shape.levels < 256 and (top := int(images.max())) >= shape.levels:
            raise UserError(f"{path} has the level {top}; expected 0 to {shape.levels - 1}; {PREPARE}")
        return images

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes; raises UserError if the manifest lacks them."""
        names = self.manifest.get("classes")
        if not isinstance(names, list) or not names:
            raise UserError(f"{self.folder} lacks class names; {PREPARE}")
        return tuple(map(str, names))

    def labelled(self, split: str) -> tuple[np.ndarray, np.ndarray]:
        """The images of a split and their classes `(images,)`; raises UserError as `images` does."""
        images, corpus = self.images(split), str(self.manifest.get("corpus"))
        return images, load_labels(self.folder, split, [len(images)], len(self.classes), corpus, PREPARE)


def open_image_data(folder: Path) -> ImageData:
    """The images in `folder`; raises UserError if there are none, or the manifest cannot be read."""
    if not folder.is_dir():
        raise UserError(f"no data folder {folder}; prepare it with data-prep/images.sh")
    check_no_pipe(folder)
    try:
        manifest = json.loads((folder / PREPARED).read_text(encoding="utf-8"))
        shape = ImageShape(*(int(manifest[name]) for name in ImageShape.__dataclass_fields__))
        return ImageData(folder, shape, {**manifest, "splits": dict(manifest["splits"])})
    except (FileNotFoundError, KeyError, TypeError):
        raise UserError(f"{folder} holds no prepared images; {PREPARE}") from None
    except ValueError:
        raise UserError(f"{folder / PREPARED} is damaged; {PREPARE}") from None


def settle_shape(cfg: Any, folder: Path) -> ImageShape:
    """The shape of the images in `folder`; where that is gone, the one that `cfg` names.

    Raises UserError if the two differ, or if there is neither.
    """
    names = list(ImageShape.__dataclass_fields__)
    named = [getattr(cfg, name) for name in names]
    if None not in named and not folder.is_dir():
        return ImageShape(*named)
    found = open_image_data(folder).shape
    wanted = [
        given if given is not None else own for given, own in zip(named, asdict(found).values(), strict=True)
    ]
    if ImageShape(*wanted) != found:
        raise UserError(
            f"{folder} holds images of {found}, but the settings or the checkpoint are for "
            f"{ImageShape(*wanted)}; name the folder of those"
        )
    return found
