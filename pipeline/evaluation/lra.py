"""Accuracy of a model of Long Range Arena."""

from typing import Any

import numpy as np
import torch
from fairseq import checkpoint_utils

from pipeline.data.lra.tasks import TASKS
from pipeline.evaluation.accuracy import count_correct
from pipeline.evaluation.evaluators import TrainedRun
from pipeline.files import read_json, shown_path
from pipeline.training.lra_run import RECORD, LRACheckpoint, describe_data, read_lra_checkpoint
from pipeline.training.process.resume import BEST
from user_dir.tasks.lra_data import LRAData


def evaluate(
    checkpoint: LRACheckpoint, data: LRAData, split: str, device: torch.device | None = None
) -> dict[str, Any]:
    """The result as it is written to JSON, with all that a table must say about the run.

    `device`: where to compute; default: the first GPU if there is one.
    """
    device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
    checkpoint.check_data(data)
    models, _, task = checkpoint_utils.load_model_ensemble_and_task(
        [str(checkpoint.path)], arg_overrides={"data": str(data.folder)}
    )
    beside = checkpoint.path.with_name(RECORD)
    run = read_json(beside) if beside.is_file() else {}
    return {
        "checkpoint": shown_path(checkpoint.path),
        "task": checkpoint.task,
        "preset": checkpoint.preset,
        "attention": checkpoint.attention,
        "options": checkpoint.options,
        "parameters": sum(p.numel() for p in models[0].parameters() if p.requires_grad),
        "steps": checkpoint.steps,
        "updates": checkpoint.updates,
        "seed": checkpoint.seed,
        "training_data": run.get("data"),
        "data": describe_data(data),
        "split": split,
        **count_correct(models[0], task, split, checkpoint.batch_size, device),
    }


def most_frequent(data: LRAData) -> float:
    """The accuracy on test, in percent, of always answering the most frequent class of train."""
    train, test = (data.split(split).labels for split in ("train", "test"))
    return 100 * float((test == np.bincount(train).argmax()).mean())


def measure_run(run: TrainedRun) -> dict[str, Any]:
    """What a study records of a run; `published_sizes`: whether the data are as many as the benchmark's."""
    found = evaluate(read_lra_checkpoint(run.checkpoint), run.data, "test", run.device)
    examples = found["data"]["examples"]
    return {
        **{key: found[key] for key in ("parameters", "examples", "correct", "accuracy", "loss_bits")},
        "most_frequent": most_frequent(run.data),
        "best_update": found["updates"],
        "chosen_on_valid": run.checkpoint.name == BEST,
        "published_sizes": sum(examples.values()) == sum(TASKS[run.data.task].sizes.values()),
    }
