"""Bits per dimension or accuracy of a model of images."""

import math
from pathlib import Path
from typing import Any

import torch
from fairseq.utils import move_to_cuda

from pipeline.errors import UserError
from pipeline.evaluation.accuracy import count_correct
from pipeline.files import shown_path
from pipeline.provenance import environment
from pipeline.training.image_run import PIXELS, ImageCheckpoint
from user_dir.criterions import PixelLikelihoodCriterion
from user_dir.tasks.image_data import open_image_data


@torch.inference_mode()
def bits_per_dimension(
    checkpoint: ImageCheckpoint,
    split: str,
    batch_size: int,
    device: torch.device,
    most: float = math.inf,
) -> dict[str, Any]:
    """Images, counted bytes and bits per dimension of a split; UserError for a loss that is NaN.

    No further batch is read once `most` images have been.
    """
    task = checkpoint.task
    task.load_dataset(split)
    batches = task.get_batch_iterator(task.dataset(split), max_sentences=batch_size)
    criterion = PixelLikelihoodCriterion(task)
    nats, images, counted = 0.0, 0, 0
    for batch in batches.next_epoch_itr(shuffle=False):
        if device.type == "cuda":
            batch = move_to_cuda(batch, device)
        loss, size, output = criterion(checkpoint.model, batch)
        nats, counted, images = nats + float(loss), counted + size, images + output["nsentences"]
        if images >= most:
            break
    if not math.isfinite(nats):
        raise UserError(f"{checkpoint.path} gives losses that are not finite: its training has diverged")
    return {"images": images, "counted": counted, "bits_per_dimension": nats / counted / math.log(2)}


def evaluate(
    checkpoint: ImageCheckpoint, split: str, batch_size: int | None, device: torch.device
) -> dict[str, Any]:
    """The result as it is written to JSON, with what a table must say about model and data."""
    task, batch_size = checkpoint.task, batch_size or checkpoint.batch_size
    images = open_image_data(Path(task.cfg.data))
    if checkpoint.task_name == PIXELS:
        found = {"given_pixels": task.cfg.given_pixels, "split": split}
        found |= bits_per_dimension(checkpoint, split, batch_size, device)
    else:
        found = {"split": split, **count_correct(checkpoint.model, task, split, batch_size, device)}
    return {
        "checkpoint": shown_path(checkpoint.path),
        **checkpoint.about(),
        "updates": checkpoint.updates,
        "seed": checkpoint.seed,
        "corpus": images.manifest["corpus"],
        "original_files": images.manifest["verified"],
        **found,
        "environment": environment(device.type),
    }
