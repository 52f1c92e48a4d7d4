"""Predictions of a fine-tuned encoder for a file of its GLUE task.

If the file has labels, the task's metrics are printed as well.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from lab.console import Parser, number_of
from lab.data.glue_files import Examples, LineReader, Source, read_examples
from lab.data.tokenization import TextEncoder, encode_sentences
from lab.errors import UserError
from lab.files import read_json, shown_path, write_atomically
from lab.glue_tasks import GlueTask, glue_task
from lab.measure.glue import HEAD, decide, predict, score
from lab.outputs import begins, check_output, say_replaced
from lab.run.checkpoint import Checkpoint, load_encoder, read_dictionary, read_encoder
from lab.run.folder import GLUE_TASK, whole_checkpoint

HEADER = "index\tprediction\n"  # of GLUE's server


def parse(words: Sequence[str]) -> argparse.Namespace:
    parser = Parser("scripts/lab.sh predict", __doc__)
    parser.add_argument(
        "checkpoint",
        type=Path,
        metavar="CHECKPOINT",
        help="what scripts/finetune_glue.sh has kept, such as .../CoLA/3e-05/seed1/checkpoint_best.pt; "
        "dictionary and tokeniser lie beside it",
    )
    parser.add_argument("--task", required=True, help="the task it is fine-tuned for, such as CoLA")
    parser.add_argument(
        "--input",
        type=Path,
        required=True,
        metavar="TSV",
        help="a file in the layout of the task's train.tsv, dev.tsv or test.tsv (.gz as well)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="where the predictions go, in the form of GLUE's server: index, prediction "
        "(default: <name of the input>.<task>.predictions.tsv beside the checkpoint)",
    )
    return parser.parse_args(words)


def read_input(path: Path, task: GlueTask) -> Examples:
    """The examples of a TSV in the layout of the task's train, dev or test file."""
    if not path.is_file():
        raise UserError(f"no file {path}")
    first = next(LineReader(path).lines(), (1, ""))[1].split("\t")
    labelled = task.label in first or (bool(task.columns) and len(first) == len(task.columns))
    return read_examples(Source(path), task, "valid" if labelled else "test")


def check_task(encoder: Checkpoint, task: GlueTask) -> None:
    """UserError for an encoder that cannot have been fine-tuned for the task."""

    classes = encoder.heads.get(HEAD)
    if classes is None:
        raise UserError(
            f"{encoder.path} has no classification head; fine-tune it first with scripts/finetune_glue.sh"
        )
    beside = encoder.path.with_name(GLUE_TASK)
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
    return HEADER + "".join(f"{i}\t{value}\n" for i, value in enumerate(values))


def targets_of(task: GlueTask, examples: Examples) -> np.ndarray:
    """The labels of a labelled file as class indices or scores."""

    if task.is_regression:
        return np.array([float(label) for label in examples.labels])
    return np.array([task.labels.index(label) for label in examples.labels])


def main() -> None:
    """Predict, and score what has labels."""
    options = parse(sys.argv[1:])
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
        print(f"{examples.broken_rows} rows with another number of columns are left out, also of the count")
    predicted = predictions(options.checkpoint.absolute(), task, examples)
    write_atomically(out, as_text(task, predicted).encode())
    if examples.labels is not None:
        figures = score(task, predicted, targets_of(task, examples))
        print(", ".join(f"{name} {value:.2f}" for name, value in figures.items()))
    print(f"written: {shown_path(out)}")
