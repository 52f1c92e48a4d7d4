"""What a study records of an encoder fine-tuned on a GLUE task: its dev metrics, and those of guessing."""

import os
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.evaluation.classification import decide, predict, read_rows, read_targets, score
from pipeline.evaluation.evaluators import TrainedRun
from pipeline.training.encoder_checkpoint import (
    EncoderCheckpoint,
    count_parameters,
    load_encoder,
    read_dictionary,
    read_encoder,
)
from pipeline.training.glue_run import TaskData, cut_sentences
from pipeline.training.process.resume import BEST, LAST
from pipeline.training.recipe import option


def measure_run(run: TrainedRun) -> dict[str, Any]:
    """The dev metrics in percent; `score` is the task's first metric, of MNLI that on the matched set.

    `majority` has the metrics of always answering the most frequent class of the train split, None for
    scores; `parameters` are those of the pre-trained model.
    """
    path = best_weights(run.checkpoint)
    data, encoder = run.data, read_encoder(path)
    start = read_encoder(Path(option(run.arguments, "--finetune-from-model")))
    dev = evaluate(encoder, data)
    metric = data.task.metrics[0]
    majority = majority_class(data)
    return {
        "task": data.task.name,
        "partial": data.manifest["partial"],
        "examples": {split: entry["examples"] for split, entry in data.manifest["splits"].items()},
        "cut": cut_sentences(data, encoder.max_positions),
        "architecture": encoder.architecture,
        "parameters": count_parameters(start, data.folder),
        "pretraining_updates": start.updates,
        "learning_rate": float(option(run.arguments, "--lr")),
        "dev": dev,
        "score": next(iter(dev.values()))[metric],
        "majority": majority and {**majority, "score": majority[metric]},
        "best_update": encoder.updates,
    }


def best_weights(path: Path) -> Path:
    """The weights of the best epoch; those of the last become them if the metric was never defined.

    (The correlation of constant scores, such as those of a run that has diverged: fairseq keeps no best.)
    """
    if path.name == LAST:
        os.replace(path, path.with_name(BEST))
    return path.with_name(BEST)


def evaluate(encoder: EncoderCheckpoint, data: TaskData) -> dict[str, dict[str, float]]:
    """The task's metrics on each dev split, in percent."""
    dictionary = read_dictionary(data.folder)
    model = load_encoder(encoder, dictionary)
    metrics = {}
    for split in data.dev_splits:
        outputs = predict(model, read_rows(data.folder, split, dictionary), dictionary.pad())
        targets = read_targets(data.folder, split, data.task)
        metrics[split] = score(data.task, decide(data.task, outputs), targets)
    return metrics


def majority_class(data: TaskData) -> dict[str, float] | None:
    """The dev metrics of always answering the train split's most frequent class."""
    if data.task.is_regression:
        return None
    train, dev = (read_targets(data.folder, split, data.task) for split in ("train", "valid"))
    return score(data.task, np.full_like(dev, np.bincount(train).argmax()), dev)
