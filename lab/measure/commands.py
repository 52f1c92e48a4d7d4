"""The commands that evaluate a checkpoint on prepared data, split by split, for each kind of model.

The result of each split is printed and written as JSON.
"""

from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from lab.console import number_of
from lab.data.prepared import identify, open_prepared
from lab.errors import UserError
from lab.files import Ours, check_output, check_same_result, json_with, shown_path, write_json
from lab.measure.accuracy import evaluate_lra
from lab.measure.perplexity import evaluate, evaluate_masked_lm
from lab.measure.pixels import evaluate as evaluate_images
from lab.options.evaluate import BESIDE_CARRIED
from lab.run.checkpoint import (
    Checkpoint,
    read_checkpoint,
    read_encoder,
    read_language_model,
    result_beside,
    usual_device,
    whole_checkpoint,
)
from lab.run.kinds import KINDS, Classification, Pixels, load_image_model, read_lra
from user_dir.checks.checkpoints import check_one_model

Result = dict[str, Any]
Evaluated = tuple[Checkpoint, Result, Iterator[Result]]
"""What was evaluated, the settings of all results, and the result of each split."""


def perplexity(path: Path, options: Namespace) -> Evaluated:
    """For `evaluate ppl`."""
    checkpoint = read_language_model(path)
    data = open_prepared(options.data.absolute(), tuple(options.splits))
    window, flags = options.context_window, options.flags
    results = (evaluate(checkpoint, data, split, window, flags, options.compile) for split in options.splits)
    return checkpoint, {"data": shown_path(data.folder), "context_window": window, "flags": flags}, results


def describe_perplexity(result: Result) -> str:
    """The result in a few readable lines."""
    per_word = result["perplexity_per_word"]
    overrides = result["model_overrides"]
    overridden = f", with --model-overrides {overrides}" if overrides else ""
    return (
        f"{result['architecture']}, {number_of(result['updates'], 'updates')}, {result['split']}: "
        f"{result['tokens']:,} tokens{overridden}\n"
        f"  loss        {result['loss_bits_per_token']:.4f} bits = "
        f"{result['loss_nats_per_token']:.4f} nats per token\n"
        f"  perplexity  {result['perplexity_per_token']:.2f} per token, "
        + (f"{per_word:.2f} per word" if per_word else f"per word unknown, since {result['words_unknown']}")
    )


def carried(path: Path, options: Namespace) -> Evaluated:
    """For `evaluate ppl --carry-state`."""
    from lab.measure import carried_state  # loads matplotlib: half a second

    checkpoint = read_language_model(path)
    data = open_prepared(options.data.absolute(), tuple(options.splits))
    overrides = carried_state.read_extra(options.flags)
    results = (
        carried_state.evaluate_carried(checkpoint, data, split, options, overrides)
        for split in options.splits
    )
    settings = {key: getattr(options, key) for key in ("segment", "reset_at_documents", "streams")}
    if options.reset_at_documents:
        del settings["streams"]  # a result has the number of documents there
    return checkpoint, {"data": shown_path(data.folder), "model_overrides": overrides, **settings}, results


def masked_lm(path: Path, options: Namespace) -> Evaluated:
    """For `evaluate mlm`."""
    encoder, splits = read_encoder(path), tuple(options.splits)
    data = open_prepared(options.data.absolute(), splits)
    return encoder, {"data": shown_path(data.folder)}, evaluate_masked_lm(encoder, data, splits)


def describe_masked_lm(result: Result) -> str:
    """Perplexity over the masked tokens."""
    return (
        f"{result['architecture']}, {number_of(result['updates'], 'updates')}, {result['split']}: masked-LM "
        f"perplexity {result['perplexity_per_token']:.2f} over {result['masked_tokens']:,} masked tokens"
    )


def lra(path: Path, options: Namespace) -> Evaluated:
    """For `evaluate lra`."""
    data = KINDS["lra"].open_data(options.data.absolute(), options.splits)
    checkpoint = read_lra(path)
    results = evaluate_lra(checkpoint, data, options.splits, usual_device())
    return checkpoint, {"data": identify(data.folder)}, results


def describe_lra(result: Result) -> str:
    """Accuracy, and where the data come from."""
    origin = (result["training_data"] or {}).get("origin", "unknown")
    return (
        f"{result['task']} ({origin} data), {result['preset']}, {result['attention']}, "
        f"seed {result['seed']}, {number_of(result['updates'], 'updates')}: "
        f"{result['accuracy']:.2f} % of {result['examples']:,} right ({result['split']})"
    )


def images(path: Path, options: Namespace) -> Evaluated:
    """For `evaluate images`."""
    checkpoint = load_image_model(path, options.data, Pixels.task, Classification.task)
    results = evaluate_images(checkpoint, options.splits, options.batch_size, usual_device())
    return checkpoint, {"data": shown_path(Path(checkpoint.task.cfg.data))}, results


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


def check_gpus(asked: int | None) -> None:
    """UserError if a GPU is asked for and there is none."""
    if asked and not torch.cuda.is_available():
        raise UserError("--gpus is 1, but this machine has 0 usable GPUs; give 0 for the CPU")


def checkpoint_of(options: Namespace) -> Path:
    """The checkpoint that the options name, see `whole_checkpoint`; UserError if they name several."""
    check_one_model("CHECKPOINT", str(options.checkpoint))
    return whole_checkpoint(options.checkpoint.absolute())


def result_files(
    command: str,
    options: Namespace,
    checkpoint: Path,
    ours: Ours,
    ending: str = ".json",
    beside: Iterable[str] = (),
) -> dict[str, Path]:
    """The file of each result by split: --out, or <checkpoint>.<split> with `ending`.

    UserError for a file that cannot be written or holds anything but a result (`ours`) of `command` for
    this checkpoint and split; the message names another command if the model needs it.
    """
    if options.out and len(options.splits) > 1:
        raise UserError("--out names one file, but --split several splits; give one, or leave --out out")
    files = {split: options.out or result_beside(checkpoint, f".{split}{ending}") for split in options.splits}
    for split, out in files.items():
        try:
            check_output(out, ours, [checkpoint], beside)
        except UserError:
            check_command(checkpoint, command)
            raise
        if options.out:
            check_same_result(out, {"checkpoint": shown_path(checkpoint), "split": split})
    return files


def check_same_settings(files: Mapping[str, Path], settings: Result) -> None:
    """UserError if one of the result files is of other `settings`."""
    for out in files.values():
        check_same_result(out, settings)


def check_command(path: Path, command: str) -> None:
    """UserError, which names the right command, if this one does not evaluate the model in `path`."""
    try:
        task = read_checkpoint(path).task_name
    except UserError:  # no checkpoint at all
        return
    right = KINDS[task].evaluation if task in KINDS else command
    if right != command:
        raise UserError(f"{path} holds a model of the task {task}; evaluate it with {right}")


def averaged(checkpoint: Checkpoint) -> Result:
    """The averaged checkpoints, for the result of an average."""
    return {"averaged": checkpoint.averaged} if checkpoint.averaged else {}


def write_result(describe: Callable[[Result], str], result: Result, out: Path) -> None:
    """Write a result and print it as `describe` puts it in words."""
    text = describe(result)
    write_json(out, result)
    if names := result.get("averaged"):
        text += f"\n  average of  {', '.join(names)}"
    print(f"{text}\n  written to  {shown_path(out)}", flush=True)


def write_carried(result: Result, out: Path) -> None:
    """Write a result with carried state, its table and its plot, and print the table."""
    from lab.measure import carried_state  # loads matplotlib: half a second

    carried_state.write_carried(result, out)


@dataclass(frozen=True)
class Evaluator:
    """How a kind of model is evaluated.

    `keys` are those by which a result is recognised. `write` writes a result to its file, whose name has
    `ending`, and to further files with the endings `beside`, and prints it in words.
    """

    keys: tuple[str, ...]
    evaluate: Callable[[Path, Namespace], Evaluated]
    write: Callable[[Result, Path], None]
    ending: str = ".json"
    beside: tuple[str, ...] = ()


EVALUATORS = {
    "ppl": Evaluator(
        ("checkpoint", "split", "context_window", "perplexity_per_token"),
        perplexity,
        partial(write_result, describe_perplexity),
    ),
    "carried": Evaluator(
        ("checkpoint", "split", "streams", "segment", "buckets"),
        carried,
        write_carried,
        ".carried.json",
        BESIDE_CARRIED,
    ),
    "mlm": Evaluator(
        ("checkpoint", "split", "masked_tokens", "perplexity_per_token"),
        masked_lm,
        partial(write_result, describe_masked_lm),
    ),
    "lra": Evaluator(
        ("checkpoint", "task", "preset", "attention", "split", "accuracy"),
        lra,
        partial(write_result, describe_lra),
    ),
    "images": Evaluator(
        ("checkpoint", "architecture", "corpus", "original_files", "split"),
        images,
        partial(write_result, describe_images),
    ),
}


def main(options: Namespace) -> None:
    """Evaluate a model on each split."""
    check_gpus(options.gpus)
    evaluator = EVALUATORS[options.kind]
    path, ours = checkpoint_of(options), json_with(*evaluator.keys)
    files = result_files(options.command, options, path, ours, evaluator.ending, evaluator.beside)
    checkpoint, settings, results = evaluator.evaluate(path, options)
    check_same_settings(files, settings)
    for result in results:
        evaluator.write({**result, **settings, **averaged(checkpoint)}, files[result["split"]])
