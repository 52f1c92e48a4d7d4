"""Other views of a training image: shifted or cropped, and flipped."""

import math
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

SHIFT = 8  # a shift goes up to this part of a side
AREA, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)  # of a crop: its part of the image, width / height
ATTEMPTS = 10


def _flipped(image: Tensor, generator: np.random.Generator) -> Tensor:
    return image.flip(1) if generator.random() < 0.5 else image


def shift_flip(image: Tensor, generator: np.random.Generator) -> Tensor:
    """Moved by up to an eighth of each side, zeros where nothing is left, and mirrored half of the time.

    `image` and the result are uint8 `(height, width, channels)`.
    """
    height, width = image.shape[:2]
    down, right = height // SHIFT, width // SHIFT
    padded = F.pad(image, (0, 0, right, right, down, down))
    top, left = (int(generator.integers(0, 2 * most + 1)) for most in (down, right))
    return _flipped(padded[top : top + height, left : left + width], generator)


def crop_flip(image: Tensor, generator: np.random.Generator) -> Tensor:
    """A part of random area and ratio, resized to the whole (torchvision's), mirrored half of the time.

    `image` and the result are uint8 `(height, width, channels)`. The crop has 8 to 100 % of the area and a
    ratio of 3/4 to 4/3, drawn again while it does not fit; after ten draws the whole image is taken.
    """
    height, width = image.shape[:2]
    top, left, rows, columns = _crop(height, width, generator)
    part = image[top : top + rows, left : left + columns].permute(2, 0, 1).unsqueeze(0).float()
    resized = F.interpolate(part, (height, width), mode="bilinear", align_corners=False, antialias=True)
    levels = resized.squeeze(0).permute(1, 2, 0).round().clamp(0, 255).to(torch.uint8)
    return _flipped(levels, generator)


def _crop(height: int, width: int, generator: np.random.Generator) -> tuple[int, int, int, int]:
    """Top, left, rows and columns."""
    for _ in range(ATTEMPTS):
        area = height * width * generator.uniform(*AREA)
        ratio = math.exp(generator.uniform(*map(math.log, RATIO)))
        rows, columns = round(math.sqrt(area / ratio)), round(math.sqrt(area * ratio))
        if 0 < rows <= height and 0 < columns <= width:
            top = int(generator.integers(0, height - rows + 1))
            return top, int(generator.integers(0, width - columns + 1)), rows, columns
    return 0, 0, height, width


AUGMENTATIONS: dict[str, Callable[[Tensor, np.random.Generator], Tensor]] = {
    "none": lambda image, generator: image,
    "shift-flip": shift_flip,
    "crop-flip": crop_flip,
}
