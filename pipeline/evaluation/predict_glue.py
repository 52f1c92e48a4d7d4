"""Predictions of a fine-tuned encoder for a TSV of its task (the command behind predict_glue.sh)."""

import sys
from pathlib import Path

import numpy as np

from pipeline.commands.evaluation.predict_glue import parse
from pipeline.console import number_of
from pipeline.data.glue_files import Examples, LineReader, Source, read_examples
from pipeline.data.text_encoding import TextEncoder, encode_sentences
from pipeline.errors import UserError
from pipeline.evaluation.classification import HEAD, decide, predict, score
from pipeline.files import check_writable, read_json, shown_path, write_atomically
from pipeline.glue_tasks import GlueTask, glue_task
from pipeline.training.encoder_checkpoint import (
    TASK_FILE,
    EncoderCheckpoint,
    load_encoder,
    read_dictionary,
    read_encoder,
)
from pipeline.training.save_dir import whole_checkpoint


def read_input(path: Path, task: GlueTask) -> Examples:
    """The examples of a TSV in the layout of the task's train, dev or test file."""
    if not path.is_file():
        raise UserError(f"no file {path}")
    first = next(LineReader(path).lines(), (1, ""))[1].split("\t")
    labelled = task.label in first or (bool(task.columns) and len(first) == len(task.columns))
    return read_examples(Source(path), task, "valid" if labelled else "test")


def check_task(encoder: EncoderCheckpoint, task: GlueTask) -> None:
    """UserError for an encoder that cannot have been fine-tuned for the task."""
    classes = encoder.heads.get(HEAD)
    if classes is None:
        raise UserError(
            f"{encoder.path} has no classification head; fine-tune it first with scripts/finetune_glue.sh"
        )
    beside = encoder.path.with_name(TASK_FILE)
    trained_for = read_json(beside)["task"] if beside.is_file() else task.name
    if trained_for != task.name:
        raise UserError(f"{encoder.path} is fine-tuned for {trained_for}, not for {task.name}")
    if classes != task.classes:
        raise UserError(
            f"{encoder.path} tells {classes} classes apart, but {task.name} has {task.classes}; "
            "is it fine-tuned for another task?"
        )


def predictions(checkpoint: Path, task: GlueTask, examples: Examples) -> np.ndarray:
    """Class indices or scores, one an example."""
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
    """What GLUE's server takes: a header, then index and prediction, a line each."""
    values = [f"{value:.3f}" if task.is_regression else task.labels[value] for value in predicted]
    return "index\tprediction\n" + "".join(f"{i}\t{value}\n" for i, value in enumerate(values))


def targets_of(task: GlueTask, examples: Examples) -> np.ndarray:
    """The labels of a labelled file as class indices or scores."""
    if task.is_regression:
        return np.array([float(label) for label in examples.labels])
    return np.array([task.labels.index(label) for label in examples.labels])


def main() -> None:
    """Entry point."""
    options = parse(sys.argv[1:])
    task = glue_task(options.task)
    out = options.out or Path(f"{options.input.name.split('.')[0]}.{task.name}.predictions.tsv")
    check_writable(out)
    examples = read_input(options.input, task)
    if not examples.sentences:
        raise UserError(f"{options.input} holds no example")
    print(f"{task.name}: {number_of(len(examples.sentences), 'examples')} of {options.input}", flush=True)
    if examples.broken_rows:
        print(f"{examples.broken_rows} rows with another number of columns are left out, also of the count")
    predicted = predictions(options.checkpoint.absolute(), task, examples)
    write_atomically(out, as_text(task, predicted).encode())
    if examples.labels is not None:
        figures = score(task, predicted, targets_of(task, examples))
        print(", ".join(f"{name} {value:.2f}" for name, value in figures.items()))
    print(f"written: {shown_path(out)}")
