"""Images drawn from a model byte by byte."""

import io
from collections.abc import Iterator

import numpy as np
import torch
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from torch import Tensor

from pipeline.errors import UserError
from pipeline.evaluation.sample_images import SOFTWARE
from user_dir.models import PixelModel

GAP, SHOWN_SIDE = 2, 64  # pixels between images, and how large the larger side is drawn at least


@torch.inference_mode()
def draw(
    model: PixelModel, eos: int, dims: int, given: Tensor, uniform: Tensor, recompute: bool = False
) -> Tensor:
    """Levels `(B, dims)` of images that begin with the levels `given: (B, M)`.

    Args:
        model: in evaluation mode; it keeps its decoding state, or cache, from byte to byte.
        eos: the token in front of the first byte.
        dims: bytes of an image.
        given: may have no column.
        uniform: `(B, dims, 2)` numbers of (0, 1), what each byte is drawn with.
        recompute: run the whole prefix for every byte instead.

    Raises:
        UserError: if the model's outputs are not finite.
    """
    tokens = torch.full((len(given), dims + 1), eos, device=given.device)
    known = given.shape[1]
    tokens[:, 1 : known + 1] = given + model.first_level
    state: dict | None = None if recompute else {}
    start = 0
    for place in range(known, dims):
        outputs = model(tokens[:, start : place + 1], incremental_state=state)[0][:, -1]
        if not torch.isfinite(outputs).all():
            raise UserError(f"the model's outputs at byte {place} are not finite: its training has diverged")
        tokens[:, place + 1] = model.sample(outputs, uniform[:, place])
        start = 0 if recompute else place + 1
    return tokens[:, 1:] - model.first_level


def uniforms(seed: int, numbers: range, dims: int) -> Tensor:
    """What images are drawn with, `(images, dims, 2)`: each by its number, whatever the batch."""
    rows = [np.random.default_rng((seed, number)).random((dims, 2)) for number in numbers]
    return torch.from_numpy(np.stack(rows))


def batches(count: int, size: int) -> Iterator[range]:
    """The numbers of `count` images, `size` at a time."""
    return (range(first, min(first + size, count)) for first in range(0, count, size))


def grid(images: np.ndarray, levels: int, columns: int) -> bytes:
    """A PNG of images `(images, height, width, channels)`, `columns` side by side, on a grey ground."""
    count, height, width, channels = images.shape
    rows = -(-count // columns)
    shape = rows * (height + GAP) + GAP, columns * (width + GAP) + GAP, channels
    canvas = np.full(shape, 128, np.uint8)
    for number, image in enumerate(np.rint(images * (255 / (levels - 1))).astype(np.uint8)):
        top, left = GAP + number // columns * (height + GAP), GAP + number % columns * (width + GAP)
        canvas[top : top + height, left : left + width] = image
    picture = Image.fromarray(canvas.squeeze(-1) if channels == 1 else canvas)
    scale = max(1, SHOWN_SIDE // max(height, width))
    enlarged = picture.resize((picture.width * scale, picture.height * scale), Image.Resampling.NEAREST)
    content, about = io.BytesIO(), PngInfo()
    about.add_text("Software", SOFTWARE)
    enlarged.save(content, "PNG", pnginfo=about)
    return content.getvalue()
