"""Images byte by byte: bits per dimension of a model, its drawings, and the command `sample`."""

import io
import math
import time
from argparse import Namespace
from base64 import b64encode
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from torch import Tensor
from tqdm import tqdm

from lab.console import number_of
from lab.errors import UserError
from lab.files import begins, check_output, say_replaced, shown_path, write_atomically
from lab.measure import TrainedRun
from lab.measure.accuracy import about_images, batches_of, count_correct
from lab.provenance import environment
from lab.run.checkpoint import Checkpoint, result_beside, usual_device, whole_checkpoint
from lab.run.kinds import Pixels, load_image_model
from user_dir.criterions import PixelLikelihoodCriterion
from user_dir.models import PixelModel
from user_dir.tasks.image_data import ImageData, ImageShape, open_image_data

SAMPLER = "scripts/sample_images.sh"
"""The command that a PNG names as its maker; it keeps the former name, so that older PNGs are recognised."""
SPLITS = ("train", "valid", "test")
OF_TRAIN = 5_000
"""At most this many images of train are measured; of valid and test, all are."""
SHOWN = 10
"""Images drawn, and as many completed."""
GAP, SHOWN_SIDE = 2, 64  # pixels between images, and how large the larger side is drawn at least


@torch.inference_mode()
def bits_per_dimension(
    checkpoint: Checkpoint,
    split: str,
    batch_size: int,
    device: torch.device,
    most: float = math.inf,
) -> dict[str, Any]:
    """Images, counted bytes and bits per dimension of a split; UserError if the loss is NaN.

    No further batch is read once `most` images have been.
    """
    task = checkpoint.task
    criterion, model = PixelLikelihoodCriterion(task), checkpoint.model.to(device)
    nats, images, counted = 0.0, 0, 0
    for batch in batches_of(task, split, device, max_sentences=batch_size):
        loss, size, output = criterion(model, batch)
        nats, counted, images = nats + float(loss), counted + size, images + output["nsentences"]
        if images >= most:
            break
    if not math.isfinite(nats):
        raise UserError(
            f"{checkpoint.path} gives losses that are not finite: its training has diverged; "
            "name an earlier checkpoint"
        )
    return {"images": images, "counted": counted, "bits_per_dimension": nats / counted / math.log(2)}


def evaluate(
    checkpoint: Checkpoint, splits: Iterable[str], batch_size: int | None, device: torch.device
) -> Iterator[dict[str, Any]]:
    """The result of each split, of this task or of classification, as it is written to JSON."""
    task, batch_size = checkpoint.task, batch_size or checkpoint.batch_size
    images = open_image_data(Path(task.cfg.data))
    for split in splits:
        images.images(split)
    for split in splits:
        if checkpoint.task_name == Pixels.task:
            found = {"given_pixels": task.cfg.given_pixels, "split": split}
            found |= bits_per_dimension(checkpoint, split, batch_size, device)
        else:
            found = {"split": split, **count_correct(checkpoint.model, task, split, batch_size, device)}
        yield {
            "checkpoint": shown_path(checkpoint.path),
            **about_images(checkpoint),
            "updates": checkpoint.updates,
            "seed": checkpoint.seed,
            "corpus": images.manifest["corpus"],
            "original_files": images.manifest["verified"],
            **found,
            "environment": environment(device.type),
        }


def measure_run(run: TrainedRun) -> dict[str, Any]:
    """Bits per dimension of the splits, of plain frequencies on test, and pictures."""
    checkpoint = load_image_model(run.checkpoint, run.data.folder, Pixels.task)
    size = checkpoint.batch_size
    most = {"train": {"most": OF_TRAIN}}
    found = {
        split: bits_per_dimension(checkpoint, split, size, run.device, **most.get(split, {}))
        for split in SPLITS
    }
    return {
        **about_images(checkpoint),
        "images": {split: figures["images"] for split, figures in found.items()},
        "bits_per_dimension": {split: figures["bits_per_dimension"] for split, figures in found.items()},
        "without_a_model": without_a_model(run.data, checkpoint.task.cfg.given_pixels),
        "pictures": pictures(checkpoint, run.data, run.device),
    }


def without_a_model(data: ImageData, given: int = 0) -> dict[str, float]:
    """Bits per dimension on test of frequencies counted on train, one added to each count.

    `uniform`: all levels alike; `histogram`: one for all places; `histogram_by_place`: one for each. The
    first `given` bytes do not count.
    """
    train, test = (
        np.array(data.images(split)).reshape(-1, data.shape.dims)[:, given:] for split in ("train", "test")
    )
    counts = np.ones((train.shape[1], data.shape.levels))
    for place, column in enumerate(train.T):
        counts[place] += np.bincount(column, minlength=data.shape.levels)
    together = counts.sum(0, keepdims=True)
    bits = {
        "histogram_by_place": -np.log2(counts / counts.sum(1, keepdims=True)),
        "histogram": np.broadcast_to(-np.log2(together / together.sum()), counts.shape),
    }
    places = np.arange(train.shape[1])
    return {
        "uniform": float(np.log2(data.shape.levels)),
        **{name: float(table[places, test].mean()) for name, table in bits.items()},
    }


def pictures(checkpoint: Checkpoint, data: ImageData, device: torch.device) -> dict[str, str]:
    """Images that are drawn, test images, and these with the lower half drawn: bytes in base64."""
    model, shape, eos = checkpoint.model.to(device), data.shape, checkpoint.task.dictionary.eos()
    true = np.array(data.images("test")[:SHOWN])
    chance = uniforms(0, range(len(true)), shape.dims).to(device)
    found = {"test images": true}
    for name, rows in (("drawn", 0), ("completed", shape.height // 2)):
        begin = torch.from_numpy(beginnings(checkpoint, true, rows)).to(device)
        found[name] = draw(model, eos, shape.dims, begin, chance).cpu().numpy().astype(np.uint8)
    return {name: b64encode(images.tobytes()).decode() for name, images in found.items()}


def beginnings(checkpoint: Checkpoint, images: np.ndarray, rows: int) -> np.ndarray:
    """The levels `(images, M)` with which drawn images begin: `rows` of `images`.

    At least the bytes that training gives, since the model has not learned them.
    """
    shape = checkpoint.task.shape
    known = max(checkpoint.task.cfg.given_pixels, rows * shape.width * shape.channels)
    return images.reshape(len(images), -1)[:, :known].astype(np.int64)


@torch.inference_mode()
def draw(
    model: PixelModel, eos: int, dims: int, given: Tensor, uniform: Tensor, recompute: bool = False
) -> Tensor:
    """Levels `(B, dims)` of images that begin with the levels `given: (B, M)`.

    Args:
        model: in evaluation mode; it keeps its decoding state, or cache, from byte to byte.
        eos: the token in front of the first byte.
        dims: bytes of an image.
        given: may be empty.
        uniform: `(B, dims, 2)` random numbers in (0, 1) from which each byte is drawn.
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
            raise UserError(
                f"the model's outputs at byte {place} are not finite: its training has diverged; "
                "name an earlier checkpoint"
            )
        tokens[:, place + 1] = model.sample(outputs, uniform[:, place])
        start = 0 if recompute else place + 1
    return tokens[:, 1:] - model.first_level


def uniforms(seed: int, numbers: range, dims: int) -> Tensor:
    """Random numbers `(images, dims, 2)` to draw images with; each image has its own, whatever the batch."""
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
    about.add_text("Software", SAMPLER)
    enlarged.save(content, "PNG", pnginfo=about)
    return content.getvalue()


SAMPLES = begins(f"Software\0{SAMPLER}", within=200)


def given_rows(share: float, shape: ImageShape) -> int:
    """A share as a number of rows; UserError if it is 0 or all."""
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
        raise UserError(
            f"--count is {options.count}, but {folder} has {len(images)} test images; "
            f"give {len(images)} or fewer"
        )
    return np.array(images[: options.count])


def main(options: Namespace) -> None:
    """Draw the images, or complete them, and write them."""
    path = whole_checkpoint(options.checkpoint.absolute())
    ending = ".samples.png" if options.complete is None else ".completed.png"
    out = options.out or result_beside(path, ending)
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
