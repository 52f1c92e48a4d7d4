"""Accuracy of classifiers: models of Long Range Arena and Vision Transformers."""

import math
import statistics
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fairseq.models import BaseFairseqModel
from fairseq.tasks import FairseqTask
from fairseq.utils import move_to_cuda

from pipeline.data.lra.tasks import TASKS
from pipeline.data.prepared import identify
from pipeline.errors import UserError
from pipeline.evaluation.evaluators import TrainedRun
from pipeline.files import read_json, shown_path
from pipeline.training.checkpoint import Checkpoint, default_settings
from pipeline.training.kinds import (
    LRA_RUN,
    Classification,
    check_lra_data,
    load_image_model,
    read_lra,
)
from pipeline.training.log import read_log
from pipeline.training.save_dir import BEST
from user_dir.criterions import ClassificationCriterion
from user_dir.tasks.lra_data import LRAData

# Fields that the model fills in from the data, or that have a place of their own in a result.
NOT_OPTIONS = (
    "_name",
    "encoder_attention",
    "max_positions",
    "vocabulary_size",
    "glu_dim",
    "classifier_dim",
    "allow_changed",
)


@torch.inference_mode()
def count_correct(
    model: BaseFairseqModel, task: FairseqTask, split: str, batch_size: int, device: torch.device
) -> dict[str, Any]:
    """Examples, correct answers, accuracy in percent and mean loss in bits of a split; all of it counts."""
    model = model.to(device).eval()
    task.load_dataset(split)
    batches = task.get_batch_iterator(
        task.dataset(split), max_sentences=batch_size, max_positions=model.max_positions()
    ).next_epoch_itr(shuffle=False)
    criterion = ClassificationCriterion(task)
    loss, correct, count = 0.0, 0, 0
    for batch in batches:
        if device.type == "cuda":
            batch = move_to_cuda(batch, device)
        _, rows, output = criterion(model, batch)
        loss, correct, count = loss + float(output["loss"]), correct + int(output["ncorrect"]), count + rows
    if count == 0:
        raise UserError(f"{split} holds no example")
    return {
        "examples": count,
        "correct": correct,
        "accuracy": 100 * correct / count,
        "loss_bits": loss / count / math.log(2),
    }


def evaluate_lra(
    checkpoint: Checkpoint, data: LRAData, splits: Iterable[str], device: torch.device
) -> Iterator[dict[str, Any]]:
    """The result of each split as it is written to JSON, with all that a table must say about the run."""
    check_lra_data(checkpoint, data)
    checkpoint, preset = checkpoint.on(data.folder), checkpoint.architecture
    defaults = default_settings(preset, checkpoint.settings)
    beside = checkpoint.path.with_name(LRA_RUN)
    run = read_json(beside) if beside.is_file() else {}
    about = {
        "checkpoint": shown_path(checkpoint.path),
        "task": checkpoint.task_settings["lra_task"],
        "preset": preset,
        "attention": checkpoint.attention,
        "options": {
            key: checkpoint.settings[key]
            for key, default in defaults.items()
            if key not in NOT_OPTIONS and checkpoint.settings.get(key, default) != default
        },
        "parameters": checkpoint.parameters,
        "steps": checkpoint.groups["optimization"]["max_update"],
        "updates": checkpoint.updates,
        "seed": checkpoint.seed,
        "training_data": run.get("data"),
        "data": identify(data.folder),
    }
    for split in splits:
        found = count_correct(checkpoint.model, checkpoint.task, split, checkpoint.batch_size, device)
        yield {**about, "split": split, **found}


def most_frequent(train: np.ndarray, other: np.ndarray) -> float:
    """The accuracy on `other` labels, in percent, of always answering the most frequent one of `train`."""
    return 100 * float((np.asarray(other) == np.bincount(train).argmax()).mean())


def measure_lra(run: TrainedRun) -> dict[str, Any]:
    """What a study records of a run; `published_sizes`: whether the data are as many as the benchmark's."""
    [found] = evaluate_lra(read_lra(run.checkpoint), run.data, ("test",), run.device)
    examples = found["data"]["examples"]
    return {
        **{key: found[key] for key in ("parameters", "examples", "correct", "accuracy", "loss_bits")},
        "most_frequent": most_frequent(*(run.data.split(name).labels for name in ("train", "test"))),
        "best_update": found["updates"],
        "chosen_on_valid": run.checkpoint.name == BEST,
        "published_sizes": sum(examples.values()) == sum(TASKS[run.data.task].sizes.values()),
    }


def about_images(checkpoint: Checkpoint) -> dict[str, Any]:
    """What a result says about a model of images."""
    return {
        "architecture": checkpoint.architecture,
        "attention": checkpoint.attention,
        "parameters": checkpoint.parameters,
    }


def measure_images(run: TrainedRun) -> dict[str, Any]:
    """Accuracy on test, or on valid where there is no test, and what the log says."""
    checkpoint = load_image_model(run.checkpoint, run.data.folder, Classification.task)
    split = "test" if "test" in run.data.manifest["splits"] else "valid"
    size = checkpoint.batch_size
    return {
        **about_images(checkpoint),
        "training_images": run.data.manifest["splits"]["train"]["images"],
        "split": split,
        **count_correct(checkpoint.model, checkpoint.task, split, size, run.device),
        "most_frequent_class": most_frequent(*(run.data.labelled(name)[1] for name in ("train", split))),
        **logged(run.folder / "train.log"),
    }


def logged(log: Path) -> dict[str, Any]:
    """Of the log of a run: the gradient norm, the largest 1 / loss scale, alpha and beta by layer."""
    inner = {int(record["num_updates"]): record for record in read_log(log)["train_inner"]}
    norms = [record["gnorm"] for record in inner.values()]
    scales = [record["loss_scale"] for record in inner.values() if record.get("loss_scale")]
    return {
        "gradient_norm": statistics.median(norms) if norms else None,
        "largest_inverse_loss_scale": 1 / min(scales) if scales else None,
        "exponents": {
            key: [(update, record[key]) for update, record in sorted(inner.items()) if key in record]
            for key in sorted({key for record in inner.values() for key in record})
            if key.startswith(("alpha/", "beta/"))
        },
    }
