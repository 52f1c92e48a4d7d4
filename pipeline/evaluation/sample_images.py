"""Images drawn from a model byte by byte (the command behind sample_images.sh)."""

import io
import sys
import time
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from tqdm import tqdm

from pipeline.commands.evaluation.sample_images import parse
from pipeline.console import number_of
from pipeline.errors import UserError
from pipeline.files import check_writable, shown_path, write_atomically
from pipeline.training.image_run import read_image_checkpoint
from pipeline.training.save_dir import whole_checkpoint
from user_dir.models import PixelModel
from user_dir.tasks.image_data import ImageShape, open_image_data

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
    content = io.BytesIO()
    picture.resize((picture.width * scale, picture.height * scale), Image.Resampling.NEAREST).save(
        content, "PNG"
    )
    return content.getvalue()


def given_rows(share: float, shape: ImageShape) -> int:
    """How many rows a share is; UserError if that is none or all."""
    rows = round(share * shape.height)
    if not 0 < rows < shape.height:
        raise UserError(
            f"--complete {share} gives {rows} of {shape.height} rows; it must give some and leave some"
        )
    return rows


def originals(options: Namespace, folder: Path) -> np.ndarray:
    """The test images that are completed; UserError if there are fewer than --count."""
    images = open_image_data(folder).images("test")
    if options.count > len(images):
        raise UserError(f"--count is {options.count}, but {folder} has {len(images)} test images")
    return np.array(images[: options.count])


def sample(options: Namespace) -> Path:
    """Draw the images and write them; returns the PNG's path."""
    path = whole_checkpoint(options.checkpoint.absolute())
    ending = ".samples.png" if options.complete is None else ".completed.png"
    out = options.out or path.with_suffix(ending)
    check_writable(out)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    checkpoint = read_image_checkpoint(path, options.data, device)
    shape, model = checkpoint.task.shape, checkpoint.model
    given = np.zeros((options.count, 0), np.int64)
    if options.complete is not None:
        rows = given_rows(options.complete, shape)
        true = originals(options, Path(checkpoint.task.cfg.data))
        given = true[:, :rows].reshape(options.count, -1).astype(np.int64)
    began, drawn = time.perf_counter(), []
    eos = checkpoint.task.dictionary.eos()
    for numbers in tqdm(list(batches(options.count, options.batch_size)), unit=" batches", disable=None):
        begin = torch.from_numpy(given[numbers.start : numbers.stop]).to(device)
        chance = uniforms(options.seed, numbers, shape.dims).to(device)
        drawn.append(draw(model, eos, shape.dims, begin, chance, options.recompute).cpu().numpy())
    seconds = time.perf_counter() - began
    images = np.concatenate(drawn).astype(np.uint8).reshape(-1, shape.height, shape.width, shape.channels)
    shown, columns = images, max(1, round(options.count**0.5))
    if options.complete is not None:
        occluded = true.copy()
        occluded[:, rows:] = 0
        shown = np.stack([occluded, images, true], axis=1).reshape(-1, *images.shape[1:])
        columns = 3
    array = io.BytesIO()
    np.save(array, images)
    write_atomically(out.with_suffix(".npy"), array.getvalue())
    write_atomically(out, grid(shown, shape.levels, columns))
    print(
        f"{number_of(options.count, 'images')} in {seconds:.1f} s ({options.count / seconds:.3g} images/s, "
        f"{min(options.count, options.batch_size)} at once)\n  written to  {shown_path(out)} and .npy"
    )
    return out


def main() -> None:
    """Entry point."""
    sample(parse(sys.argv[1:]))
