"""Draw images from a model byte by byte, or complete the upper rows of test images.

Writes a PNG grid and the array beside it (.npy, uint8 of shape (images, height, width, channels)). With
--complete each row of the grid has what was given, what the model made of it, and the original. An image
depends on the seed and its number only, not on --batch-size. A model trained with --given-pixels has not
learned the bytes at the start of an image: they are those of test images.
"""

import io
import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from lab.console import Parser, count, number_of
from lab.errors import UserError
from lab.files import shown_path, write_atomically
from lab.measure import SAMPLER
from lab.measure.pixels import batches, beginnings, draw, grid, uniforms
from lab.outputs import begins, check_output, say_replaced
from lab.run.checkpoint import usual_device
from lab.run.folder import whole_checkpoint
from lab.run.kinds import Pixels, load_image_model
from user_dir.tasks.image_data import ImageShape, open_image_data

SAMPLES = begins(f"Software\0{SAMPLER}", within=200)


def parse(words: Sequence[str]) -> Namespace:
    parser = Parser("scripts/lab.sh sample", __doc__)
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="of scripts/lab.sh train images")
    parser.add_argument(
        "data",
        type=Path,
        nargs="?",
        metavar="DATA",
        help="made by data-prep/images.sh, where test images are needed (default: the training's)",
    )
    parser.add_argument("--count", type=count, default=64, metavar="N", help="images (default: %(default)s)")
    parser.add_argument(
        "--complete",
        type=float,
        metavar="SHARE",
        help="give this share of the rows of test images, rounded, such as 0.5 for the upper half",
    )
    parser.add_argument("--seed", type=int, default=1, help="of the draws (default: %(default)s)")
    parser.add_argument(
        "--batch-size", type=count, default=64, metavar="N", help="images at once (default: %(default)s)"
    )
    parser.add_argument(
        "--recompute",
        action="store_true",
        help="run the whole prefix again for every byte instead of keeping a state, for comparison",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="the PNG (default: <checkpoint>.samples.png or .completed.png)",
    )
    options = parser.parse_args(words)
    if options.complete is not None and not 0 < options.complete < 1:
        raise UserError(f"--complete is {options.complete}; it must be a share of the rows between 0 and 1")
    if options.seed < 0:
        raise UserError(f"--seed is {options.seed}; it must be 0 or more")
    return options


def given_rows(share: float, shape: ImageShape) -> int:
    """How many rows a share is; UserError if that is none or all."""
    rows = round(share * shape.height)
    if not 0 < rows < shape.height:
        raise UserError(
            f"--complete {share} gives {rows} of {shape.height} rows; it must give some and leave some"
        )
    return rows


def originals(options: Namespace, folder: Path) -> np.ndarray:
    """The test images with which ours begin; UserError if there are fewer than --count."""

    images = open_image_data(folder).images("test")
    if options.count > len(images):
        raise UserError(f"--count is {options.count}, but {folder} has {len(images)} test images")
    return np.array(images[: options.count])


def main() -> None:
    """Draw the images, or complete them, and write them."""
    options = parse(sys.argv[1:])

    path = whole_checkpoint(options.checkpoint.absolute())
    ending = ".samples.png" if options.complete is None else ".completed.png"
    out = options.out or path.with_suffix(ending)
    check_output(out, SAMPLES, [path], (".npy",))
    say_replaced(out)
    device = usual_device()
    checkpoint = load_image_model(path, options.data, Pixels.task)
    shape, model = checkpoint.task.shape, checkpoint.model.to(device)
    rows = 0 if options.complete is None else given_rows(options.complete, shape)
    given = np.zeros((options.count, 0), np.int64)
    if rows or checkpoint.task.cfg.given_pixels:
        true = originals(options, Path(checkpoint.task.cfg.data))
        given = beginnings(checkpoint, true, rows)
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
    write_atomically(out, grid(shown, shape.levels, columns))  # first: the array is known by it
    write_atomically(out.with_suffix(".npy"), array.getvalue())
    print(
        f"{number_of(options.count, 'images')} in {seconds:.1f} s ({options.count / seconds:.3g} images/s, "
        f"{min(options.count, options.batch_size)} at once)\n  written to  {shown_path(out)} and .npy"
    )
