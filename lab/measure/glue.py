"""Predictions of an encoder fine-tuned on a GLUE task, their metrics, and the command `predict`."""

import os
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fairseq.data import Dictionary, data_utils
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import f1_score, matthews_corrcoef
from torch import Tensor

from lab.console import number_of
from lab.data.glue import Examples, LineReader, SplitSource, read_examples
from lab.data.tokenization import TextEncoder, encode_sentences
from lab.errors import UserError
from lab.files import begins, check_output, read_object, say_replaced, shown_path, write_atomically
from lab.glue_tasks import GlueTask, glue_task
from lab.measure import TrainedRun
from lab.resampling import Predictions
from lab.run.checkpoint import (
    Checkpoint,
    architecture_of,
    count_parameters,
    load_encoder,
    read_dictionary,
    read_encoder,
    usual_device,
    whole_checkpoint,
)
from lab.run.folder import BEST, GLUE_TASK, LAST
from lab.run.kinds import GlueData, cut_sentences
from lab.run.recipe import option
from user_dir.models import LinearAttentionRoberta

HEAD = "sentence_classification_head"
TOKENS_PER_BATCH = 4096


@torch.inference_mode()
def predict(model: LinearAttentionRoberta, rows: Sequence[Tensor], pad: int) -> np.ndarray:
    """The head's outputs `(rows, classes)` for rows of tokens, each cut to the model's positions.

    Rows of like length share a batch; on a GPU if there is one.
    """
    if HEAD not in model.classification_heads:
        raise UserError(
            f"the checkpoint has no classification head {HEAD}; fine-tune it with scripts/finetune_glue.sh"
        )
    device = usual_device()
    model = model.to(device).eval()
    longest = model.max_positions()
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
    outputs: dict[int, np.ndarray] = {}
    batch: list[int] = []
    for place, i in enumerate(order):
        batch.append(i)
        following = min(len(rows[order[min(place + 1, len(order) - 1)]]), longest)
        if place + 1 == len(order) or following * (len(batch) + 1) > TOKENS_PER_BATCH:
            tokens = data_utils.collate_tokens([rows[j][:longest] for j in batch], pad_idx=pad).to(device)
            logits, _ = model(tokens, features_only=True, classification_head_name=HEAD)
            outputs.update(zip(batch, logits.float().cpu().numpy(), strict=True))
            batch = []
    return np.stack([outputs[i] for i in range(len(rows))]) if rows else np.zeros((0, 0))


def decide(task: GlueTask, outputs: np.ndarray) -> np.ndarray:
    """Class indices, or scores on the task's own scale."""
    return outputs[:, 0] * task.highest_score if task.is_regression else outputs.argmax(axis=1)


def score(task: GlueTask, predictions: np.ndarray, targets: np.ndarray) -> dict[str, float]:
    """Each of the task's metrics, in percent.

    F1 is that of class 1. A correlation that is not defined (of constant predictions, of one example) counts
    as 0.
    """
    return {metric: round(100 * _METRICS[metric](predictions, targets), 4) for metric in task.metrics}


def _correlation(function):
    def value(predictions: np.ndarray, targets: np.ndarray) -> float:
        found = function(predictions, targets)[0] if len(targets) > 1 else np.nan
        return 0.0 if np.isnan(found) else float(found)

    return value


_METRICS = {
    "accuracy": lambda predictions, targets: float((predictions == targets).mean()),
    "f1": lambda predictions, targets: float(f1_score(targets, predictions, zero_division=0)),
    "matthews": lambda predictions, targets: float(matthews_corrcoef(targets, predictions)),
    "pearson": _correlation(pearsonr),
    "spearman": _correlation(spearmanr),
}


def read_rows(folder: Path, split: str, dictionary: Dictionary) -> list[Tensor]:
    """A split of a prepared task as rows of tokens: `<s> a </s>` or `<s> a </s> </s> b </s>`."""
    first = _dataset(folder / "input0" / split, dictionary)
    second = _dataset(folder / "input1" / split, dictionary) if (folder / "input1").is_dir() else None
    bos, eos = torch.tensor([dictionary.bos()]), torch.tensor([dictionary.eos()])
    rows = []
    for i in range(len(first)):
        parts = [bos, first[i]] if second is None else [bos, first[i], eos, second[i]]
        rows.append(torch.cat(parts).long())
    return rows


def read_targets(folder: Path, split: str, task: GlueTask) -> np.ndarray:
    """A split's class indices, or its scores on the task's own scale."""
    if task.is_regression:
        lines = (folder / "label" / f"{split}.label").read_text().split()
        return np.array([float(line) * task.highest_score for line in lines])
    labels = Dictionary.load(str(folder / "label" / "dict.txt"))
    dataset = _dataset(folder / "label" / split, labels)
    return np.array([int(dataset[i][0]) - labels.nspecial for i in range(len(dataset))])


def _dataset(path: Path, dictionary: Dictionary):
    dataset = data_utils.load_indexed_dataset(str(path), dictionary)
    if dataset is None:
        raise UserError(f"{path}.idx is missing; prepare the task again with data-prep/glue.sh")
    return dataset


def measure_run(run: TrainedRun) -> dict[str, Any]:
    """The dev metrics in percent; `score` is the task's first metric, of MNLI that on the matched set, whose
    predictions are kept.

    `majority` has the metrics of always answering the most frequent class of the train split, None for
    scores; `parameters` counts the pre-trained model's.
    """
    path = best_weights(run.checkpoint)
    data, encoder = run.data, read_encoder(path)
    start = read_encoder(Path(option(run.arguments, "--finetune-from-model")))
    predicted = predict_dev(encoder, data)
    dev = {split: score(data.task, *pair) for split, pair in predicted.items()}
    metric = data.task.metrics[0]
    majority = majority_class(data)
    return {
        "task": data.task.name,
        "partial": data.manifest["partial"],
        "examples": {split: entry["examples"] for split, entry in data.manifest["splits"].items()},
        "cut": cut_sentences(data, encoder.max_positions),
        "architecture": architecture_of(encoder),
        "parameters": count_parameters(start, data.folder),
        "pretraining_updates": start.updates,
        "learning_rate": first_rate(encoder),
        "dev": dev,
        "metric": metric,
        "score": next(iter(dev.values()))[metric],
        "predictions": None if data.task.is_regression else kept(*next(iter(predicted.values()))),
        "majority": majority and {**majority, "score": majority[metric]},
        "best_update": encoder.updates,
    }


def first_rate(encoder: Checkpoint) -> float:
    """The learning rate of the first epoch."""
    return encoder.groups["optimization"]["lr"][0]


def best_weights(path: Path) -> Path:
    """The weights of the best epoch; if the metric was never defined, the last epoch's take their place.

    (A run that has diverged has constant scores and so no correlation: fairseq keeps no best checkpoint.)
    """
    best = path.with_name(BEST)
    if path.name != LAST or best.exists():
        return path
    os.replace(path, best)
    return best


def predict_dev(encoder: Checkpoint, data: GlueData) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Predictions and targets of each dev split: class indices or scores."""
    dictionary = read_dictionary(data.folder)
    model = load_encoder(encoder, dictionary)
    found = {}
    for split in data.dev_splits:
        outputs = predict(model, read_rows(data.folder, split, dictionary), dictionary.pad())
        found[split] = decide(data.task, outputs), read_targets(data.folder, split, data.task)
    return found


def kept(predicted: np.ndarray, targets: np.ndarray) -> dict[str, str]:
    """Class indices as a record keeps them, for the noise of the dev set."""
    return asdict(Predictions.of(predicted, targets))


def majority_class(data: GlueData) -> dict[str, float] | None:
    """The dev metrics of always answering the train split's most frequent class."""
    if data.task.is_regression:
        return None
    train, dev = (read_targets(data.folder, split, data.task) for split in ("train", "valid"))
    return score(data.task, np.full_like(dev, np.bincount(train).argmax()), dev)


HEADER = "index\tprediction\n"  # of GLUE's server


def read_input(path: Path, task: GlueTask) -> Examples:
    """The examples of a TSV in the layout of the task's train, dev or test file."""
    if not path.is_file():
        raise UserError(f"no file {path}")
    first = next(LineReader(path).lines(), (1, ""))[1].split("\t")
    labelled = task.label in first or (bool(task.columns) and len(first) == len(task.columns))
    return read_examples(SplitSource(path), task, "valid" if labelled else "test")


def check_task(encoder: Checkpoint, task: GlueTask) -> None:
    """UserError for an encoder that cannot have been fine-tuned for the task."""
    classes = encoder.heads.get(HEAD)
    if classes is None:
        raise UserError(
            f"{encoder.path} has no classification head; fine-tune it first with scripts/finetune_glue.sh"
        )
    beside = encoder.path.with_name(GLUE_TASK)
    trained_for = (read_object(beside) if beside.is_file() else {}).get("task", task.name)
    if trained_for != task.name:
        raise UserError(
            f"{encoder.path} is fine-tuned for {trained_for}, not for {task.name}; give --task {trained_for}"
        )
    if classes != task.classes:
        raise UserError(
            f"{encoder.path} tells {classes} classes apart, but {task.name} has {task.classes}; "
            "is it fine-tuned for another task?"
        )


def predictions(checkpoint: Path, task: GlueTask, examples: Examples) -> np.ndarray:
    """Class indices or scores, one per example."""
    encoder = read_encoder(whole_checkpoint(checkpoint))
    check_task(encoder, task)
    folder = encoder.path.parent
    dictionary = read_dictionary(folder)
    text_encoder = TextEncoder.from_folder(folder)
    rows = [encode_sentences(text_encoder, dictionary, sentences) for sentences in examples.sentences]
    if cut := sum(len(row) > encoder.max_positions for row in rows):
        print(
            f"{number_of(cut, 'examples')} with more than {encoder.max_positions} tokens cut to that length"
        )
    model = load_encoder(encoder, dictionary)
    return decide(task, predict(model, rows, dictionary.pad()))


def as_text(task: GlueTask, predicted: np.ndarray) -> str:
    """Predictions as GLUE's server reads them: a header, then an index and a prediction per line."""
    values = [f"{value:.3f}" if task.is_regression else task.labels[value] for value in predicted]
    return HEADER + "".join(f"{i}\t{value}\n" for i, value in enumerate(values))


def targets_of(task: GlueTask, examples: Examples) -> np.ndarray:
    """The labels of a labelled file as class indices or scores."""
    if task.is_regression:
        return np.array([float(label) for label in examples.labels])
    return np.array([task.labels.index(label) for label in examples.labels])


def main(options: Namespace) -> None:
    """Predict all splits, and score the splits that have labels."""
    task = glue_task(options.task)
    name = f"{options.input.name.split('.')[0]}.{task.name}.predictions.tsv"
    out = options.out or options.checkpoint.with_name(name)
    check_output(out, begins(HEADER), [options.checkpoint, options.input])
    say_replaced(out)
    examples = read_input(options.input, task)
    if not examples.sentences:
        raise UserError(f"{options.input} holds no example")
    if examples.broken_rows and examples.labels is None:
        raise UserError(
            f"{options.input} has {number_of(examples.broken_rows, 'rows')} with another number of columns, "
            "for which GLUE's server expects predictions; correct the file"
        )
    print(f"{task.name}: {number_of(len(examples.sentences), 'examples')} of {options.input}", flush=True)
    if examples.broken_rows:
        print(f"{examples.broken_rows} rows with another number of columns are left out and not counted")
    predicted = predictions(options.checkpoint.absolute(), task, examples)
    write_atomically(out, as_text(task, predicted).encode())
    if examples.labels is not None:
        figures = score(task, predicted, targets_of(task, examples))
        print(", ".join(f"{name} {value:.2f}" for name, value in figures.items()))
    print(f"written: {shown_path(out)}")
