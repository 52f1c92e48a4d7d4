"""What a study records of a model of images byte by byte: bits per dimension, pictures, frequencies."""

from base64 import b64encode
from typing import Any

import numpy as np
import torch

from pipeline.evaluation.evaluators import TrainedRun
from pipeline.evaluation.image_likelihood import bits_per_dimension
from pipeline.evaluation.image_samples import draw, uniforms
from pipeline.training.image_run import ImageCheckpoint, read_image_checkpoint
from user_dir.tasks.image_data import ImageData

SPLITS = ("train", "valid", "test")
OF_TRAIN = 5_000
"""So many images of train are measured at most; of valid and test, all."""
SHOWN = 10
"""Images drawn, and as many completed."""


def measure_run(run: TrainedRun) -> dict[str, Any]:
    """Bits per dimension of the splits, of plain frequencies on test, and pictures."""
    checkpoint = read_image_checkpoint(run.checkpoint, run.data.folder, run.device)
    size = checkpoint.batch_size
    most = {"train": {"most": OF_TRAIN}}
    found = {
        split: bits_per_dimension(checkpoint, split, size, run.device, **most.get(split, {}))
        for split in SPLITS
    }
    return {
        **checkpoint.about(),
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


def pictures(checkpoint: ImageCheckpoint, data: ImageData, device: torch.device) -> dict[str, str]:
    """Images that are drawn, test images, and these with the lower half drawn: bytes in base64."""
    shape, eos = data.shape, checkpoint.task.dictionary.eos()
    true = np.array(data.images("test")[:SHOWN])
    upper = true[:, : shape.height // 2].reshape(len(true), -1)
    chance = uniforms(0, range(len(true)), shape.dims).to(device)
    found = {"test images": true}
    for name, given in (("drawn", upper[:, :0]), ("completed", upper)):
        begin = torch.from_numpy(given.astype(np.int64)).to(device)
        found[name] = draw(checkpoint.model, eos, shape.dims, begin, chance).cpu().numpy().astype(np.uint8)
    return {name: b64encode(images.tobytes()).decode() for name, images in found.items()}
