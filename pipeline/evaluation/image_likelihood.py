"""Bits per dimension or accuracy of a model of images (the command behind eval_images.sh)."""

import math
import sys
from pathlib import Path
from typing import Any

import torch
from fairseq.utils import move_to_cuda

from pipeline.commands.evaluation.eval_images import parse
from pipeline.console import number_of
from pipeline.errors import UserError
from pipeline.evaluation.accuracy import count_correct
from pipeline.files import shown_path, write_json
from pipeline.provenance import environment
from pipeline.training.image_run import CLASSIFICATION, PIXELS, ImageCheckpoint, read_image_checkpoint
from pipeline.training.save_dir import whole_checkpoint
from user_dir.criterions import PixelLikelihoodCriterion
from user_dir.tasks.image_data import open_image_data


@torch.inference_mode()
def bits_per_dimension(
    checkpoint: ImageCheckpoint, split: str, batch_size: int, device: torch.device
) -> dict[str, Any]:
    """Images, counted bytes and bits per dimension of a whole split; UserError for a loss that is NaN."""
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
    if not math.isfinite(nats):
        raise UserError(f"{checkpoint.path} gives losses that are not finite: its training has diverged")
    return {"images": images, "counted": counted, "bits_per_dimension": nats / counted / math.log(2)}


def evaluate(path: Path, data: Path | None, split: str, batch_size: int | None) -> dict[str, Any]:
    """The result as it is written to JSON, with what a table must say about model and data."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    checkpoint = read_image_checkpoint(path, data, device, (PIXELS, CLASSIFICATION))
    task, batch_size = checkpoint.task, batch_size or checkpoint.batch_size
    images = open_image_data(Path(task.cfg.data))
    if checkpoint.task_name == PIXELS:
        found = {"given_pixels": task.cfg.given_pixels, "split": split}
        found |= bits_per_dimension(checkpoint, split, batch_size, device)
    else:
        found = {"split": split, **count_correct(checkpoint.model, task, split, batch_size, device)}
    return {
        "checkpoint": shown_path(path),
        "architecture": checkpoint.architecture,
        "attention": checkpoint.attention,
        "parameters": sum(p.numel() for p in checkpoint.model.parameters() if p.requires_grad),
        "updates": checkpoint.updates,
        "seed": checkpoint.seed,
        "corpus": images.manifest["corpus"],
        "original_files": images.manifest["verified"],
        **found,
        "environment": environment(device.type),
    }


def in_words(result: dict[str, Any]) -> str:
    """What was found: bits per dimension, or accuracy."""
    if "bits_per_dimension" in result:
        return f"{result['bits_per_dimension']:.4f} bits per dimension on {result['images']:,} images"
    return f"{result['accuracy']:.2f} % of {result['examples']:,} images right"


def main() -> None:
    """Entry point."""
    options = parse(sys.argv[1:])
    path = whole_checkpoint(options.checkpoint.absolute())
    result = evaluate(path, options.data, options.split, options.batch_size)
    out = options.out or path.with_suffix(f".{options.split}.json")
    write_json(out, result)
    unverified = " (NOT the original files)" if result["original_files"] is False else ""
    print(
        f"{result['corpus']}{unverified}, {result['attention']}, seed {result['seed']}, "
        f"{number_of(result['updates'], 'updates')}: {in_words(result)} ({options.split})\n"
        f"  written to  {shown_path(out)}"
    )
