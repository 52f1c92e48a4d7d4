"""The scripts that evaluate a checkpoint on prepared data, split by split: `sys.argv[0]` names the script.

The result of each split is printed and written as JSON.
"""

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.console import Parser, add_splits, count, number_of
from pipeline.errors import UserError
from pipeline.files import shown_path, write_json
from pipeline.outputs import Ours, check_output, json_with
from pipeline.training.fairseq_process import import_quickly

Result = dict[str, Any]

EVAL_MLM = """\
Masked-LM perplexity of a pre-trained encoder.

15 % of the tokens are masked as in training, the same ones for every encoder. The result is printed and
written as JSON.
"""
EVALUATE_LRA = """\
Accuracy of a model of Long Range Arena.

Every example counts, also those of an incomplete batch. The result, with preset, attention, updates, seed
and the origin of the data, is printed and written as JSON.
"""
EVAL_IMAGES = """\
Bits per dimension of a model of images byte by byte, or accuracy of a Vision Transformer.

Every byte counts but those that the training gave (--given-pixels). The result is printed and written as
JSON.
"""


SCRIPTS = {
    "language_modeling": "scripts/eval_ppl.sh",
    "carried_language_modeling": "scripts/eval_ppl.sh",
    "masked_lm": "scripts/eval_mlm.sh",
    "sentence_prediction": "scripts/predict_glue.sh",
    "lra": "scripts/evaluate_lra.sh",
    "pixels": "scripts/eval_images.sh",
    "image_classification": "scripts/eval_images.sh",
}
"""What evaluates a model, by the task of its training."""


@dataclass(frozen=True)
class Command:
    """What differs between the scripts.

    `text` is the help, `checkpoint` and `data` that of the arguments, `keys` are those by which a result is
    recognised. `evaluate` gives the result of each split for a whole checkpoint, `describe` puts it in words.
    Models of images know the data of their training.
    """

    text: str
    checkpoint: str
    data: str
    keys: tuple[str, ...]
    evaluate: Callable[[Path, argparse.Namespace], Iterator[Result]]
    describe: Callable[[Result], str]
    of_images: bool = False


def masked_lm(path: Path, options: argparse.Namespace) -> Iterator[Result]:
    """For eval_mlm.sh."""
    from pipeline.data.prepared import open_prepared
    from pipeline.evaluation.masked_lm import evaluate
    from pipeline.training.checkpoint import read_encoder

    encoder = read_encoder(path)
    return evaluate(encoder, open_prepared(options.data.absolute(), tuple(options.splits)), options.splits)


def describe_masked_lm(result: Result) -> str:
    """Perplexity over the masked tokens."""
    return (
        f"{result['architecture']}, {number_of(result['updates'], 'updates')}, {result['split']}: masked-LM "
        f"perplexity {result['perplexity_per_token']:.2f} over {result['masked_tokens']:,} masked tokens"
    )


def lra(path: Path, options: argparse.Namespace) -> Iterator[Result]:
    """For evaluate_lra.sh."""
    from pipeline.evaluation.classifiers import evaluate_lra
    from pipeline.training.checkpoint import usual_device
    from pipeline.training.kinds import KINDS, read_lra

    data = KINDS["lra"].open_data(options.data.absolute(), options.splits)
    return evaluate_lra(read_lra(path), data, options.splits, usual_device())


def describe_lra(result: Result) -> str:
    """Accuracy, and where the data come from."""
    origin = (result["training_data"] or {}).get("origin", "unknown")
    return (
        f"{result['task']} ({origin} data), {result['preset']}, {result['attention']}, "
        f"seed {result['seed']}, {number_of(result['updates'], 'updates')}: "
        f"{result['accuracy']:.2f} % of {result['examples']:,} right ({result['split']})"
    )


def images(path: Path, options: argparse.Namespace) -> Iterator[Result]:
    """For eval_images.sh."""
    from pipeline.evaluation.pixels import evaluate
    from pipeline.training.checkpoint import usual_device
    from pipeline.training.kinds import Classification, Pixels, load_image_model

    checkpoint = load_image_model(path, options.data, Pixels.task, Classification.task)
    return evaluate(checkpoint, options.splits, options.batch_size, usual_device())


def describe_images(result: Result) -> str:
    """Bits per dimension, or accuracy."""
    if "bits_per_dimension" in result:
        found = f"{result['bits_per_dimension']:.4f} bits per dimension on {result['images']:,} images"
    else:
        found = f"{result['accuracy']:.2f} % of {result['examples']:,} images right"
    unverified = " (NOT the original files)" if result["original_files"] is False else ""
    return (
        f"{result['corpus']}{unverified}, {result['attention']}, seed {result['seed']}, "
        f"{number_of(result['updates'], 'updates')}: {found} ({result['split']})"
    )


COMMANDS = {
    "scripts/eval_mlm.sh": Command(
        EVAL_MLM,
        "of scripts/pretrain_roberta.sh",
        "a folder written by data-prep/roberta.sh",
        ("checkpoint", "split", "masked_tokens", "perplexity_per_token"),
        masked_lm,
        describe_masked_lm,
    ),
    "scripts/evaluate_lra.sh": Command(
        EVALUATE_LRA,
        "of scripts/train_lra.sh; checkpoint_best.pt is the best on valid",
        "the folder made by data-prep/lra.sh",
        ("checkpoint", "task", "preset", "attention", "split", "accuracy"),
        lra,
        describe_lra,
    ),
    "scripts/eval_images.sh": Command(
        EVAL_IMAGES,
        "of scripts/train_images.sh or train_vit.sh; checkpoint_best.pt is the best on valid",
        "made by data-prep/images.sh (default: the training's)",
        ("checkpoint", "architecture", "corpus", "original_files", "split"),
        images,
        describe_images,
        of_images=True,
    ),
}


def parse(script: str, words: Sequence[str]) -> argparse.Namespace:
    """The options of a script."""
    command = COMMANDS[script]
    parser = Parser(script, command.text)
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help=command.checkpoint)
    nargs = {"nargs": "?"} if command.of_images else {}
    parser.add_argument("data", type=Path, metavar="DATA", help=command.data, **nargs)
    if command.of_images:
        text = "images at once (default: as in training)"
        parser.add_argument("--batch-size", type=count, metavar="N", help=text)
    add_splits(parser)
    return parser.parse_args(words)


def result_files(
    script: str,
    options: argparse.Namespace,
    checkpoint: Path,
    ours: Ours,
    ending: str = ".json",
    beside: Iterable[str] = (),
) -> dict[str, Path]:
    """By split the file of its result: --out, or <checkpoint>.<split> with `ending`.

    Raises UserError for one that cannot be written, or that holds something else than a result of `script`
    (`ours`); if another script evaluates the model, it names that one.
    """
    if options.out and len(options.splits) > 1:
        raise UserError("--out names one file, but --split several splits; leave --out out")
    files = {split: options.out or checkpoint.with_suffix(f".{split}{ending}") for split in options.splits}
    for out in files.values():
        try:
            check_output(out, ours, [checkpoint], beside)
        except UserError:
            check_script(checkpoint, script)
            raise
    return files


def check_script(path: Path, script: str) -> None:
    """UserError, which names the right script, if this one does not evaluate the model in `path`."""
    from pipeline.training.checkpoint import read_checkpoint

    try:
        task = read_checkpoint(path).task_name
    except UserError:  # no checkpoint at all
        return
    if SCRIPTS.get(task, script) != script:
        raise UserError(f"{path} holds a model of the task {task}; evaluate it with {SCRIPTS[task]}")


def publish(result: Result, out: Path, text: str) -> None:
    """Write a result, and print what it says."""
    write_json(out, result)
    print(f"{text}\n  written to  {shown_path(out)}", flush=True)


def main() -> None:
    """Evaluate each split."""
    script = sys.argv[0]
    options, command = parse(script, sys.argv[1:]), COMMANDS[script]
    import_quickly("pipeline.training.checkpoint")
    from pipeline.training.save_dir import whole_checkpoint

    path = whole_checkpoint(options.checkpoint.absolute())
    files = result_files(script, options, path, json_with(*command.keys))
    for result in command.evaluate(path, options):
        publish(result, files[result["split"]], command.describe(result))
