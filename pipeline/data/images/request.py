"""What data-prep/images.sh was asked for, and what it has read."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipeline.data.cifar10 import grey
from pipeline.errors import UserError

Part = tuple[np.ndarray, np.ndarray]
"""Images, uint8 `(images, height, width, channels)`, and their classes `(images,)`."""


@dataclass(frozen=True)
class Request:
    """Where the files lie; whether others than the original ones will do; and how the images shall be.

    `size` is their side in pixels, None for the set's own. Large arrays may be kept in the folder `scratch`
    until they are written.
    """

    source: Path | None
    partial: bool
    grey: bool
    size: int | None
    scratch: Path


@dataclass(frozen=True)
class ImageSet:
    """The splits; `levels` of a byte, sha256 of what was read, whether that is the original (None: unknown).

    `unreadable` names the files that were left out.
    """

    splits: dict[str, Part]
    levels: int
    classes: tuple[str, ...]
    sources: dict[str, str]
    verified: bool | None
    unreadable: tuple[str, ...] = ()


def as_asked(read: ImageSet, request: Request) -> ImageSet:
    """The set in grey and smaller if the request says so; UserError where that cannot be."""
    splits = {}
    for split, (images, labels) in read.splits.items():
        if request.grey:
            images = in_grey(images)
        if request.size is not None:
            images = shrunk(images, request.size)
        splits[split] = images, labels
    return ImageSet(splits, read.levels, read.classes, read.sources, read.verified, read.unreadable)


def in_grey(images: np.ndarray) -> np.ndarray:
    """Pillow's grey of images of three channels; UserError for others."""
    if images.shape[3] != 3:
        raise UserError("--grey: these images are grey already; leave it out")
    planes = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
    return grey(planes).reshape(*images.shape[:3], 1)


def shrunk(images: np.ndarray, size: int) -> np.ndarray:
    """Means of squares, rounded half up, so that the side is `size`; UserError unless it divides the side."""
    count, height, width, channels = images.shape
    if height != width or height % size:
        raise UserError(f"--size is {size}; it must divide the side of the images, {height} x {width}")
    part = height // size
    sums = images.reshape(count, size, part, size, part, channels).sum((2, 4), dtype=np.uint32)
    return ((sums + part * part // 2) // (part * part)).astype(np.uint8)
