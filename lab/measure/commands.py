"""The commands that evaluate a checkpoint on prepared data, split by split, for each kind of model.

The result of each split is printed and written as JSON.
"""

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lab.console import Parser, add_splits, count, number_of, parse_before_flags
from lab.errors import UserError
from lab.files import read_json, shown_path, write_json
from lab.measure import PPL_SCRIPT
from lab.outputs import Ours, check_output, json_with
from lab.run.process import import_quickly

if TYPE_CHECKING:
    from lab.run.checkpoint import Checkpoint

Result = dict[str, Any]

PPL_KEYS = ("checkpoint", "split", "context_window", "perplexity_per_token")
CARRIED_KEYS = ("checkpoint", "split", "streams", "segment", "buckets")
STREAMS, SEGMENT = 1, 512
EVAL_PPL = """\
Perplexity of a trained language model on a prepared corpus, as fairseq-eval-lm computes it.

Printed and written: loss in bits and nats per token, perplexity per token and per word (words of the raw
text are separated by white space, plus one end-of-line per line), and the number of tokens counted.
Evaluating no token at all is an error.

With --carry-state the split is read from end to end in segments, each with the state that the one before
left: every token sees all earlier ones of its stream, however many. Perplexity, speed and memory by position
then come as a table, in the JSON and as a plot beside it.
"""
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


@dataclass(frozen=True)
class Command:
    """What differs between the kinds but `ppl`.

    `name` is the command, `text` its help, `checkpoint` and `data` the help of the arguments; `keys` are
    those by which a result is recognised. `evaluate` gives the result of each split for a whole checkpoint,
    `describe` puts it in words.
    Models of images know the data of their training.
    """

    name: str
    text: str
    checkpoint: str
    data: str
    keys: tuple[str, ...]
    evaluate: Callable[[Path, argparse.Namespace], Iterator[Result]]
    describe: Callable[[Result], str]
    of_images: bool = False


def masked_lm(path: Path, options: argparse.Namespace) -> Iterator[Result]:
    """For `evaluate mlm`."""
    from lab.data.prepared import open_prepared
    from lab.measure.perplexity import evaluate_masked_lm
    from lab.run.checkpoint import read_encoder

    encoder, splits = read_encoder(path), tuple(options.splits)
    return evaluate_masked_lm(encoder, open_prepared(options.data.absolute(), splits), splits)


def describe_masked_lm(result: Result) -> str:
    """Perplexity over the masked tokens."""
    return (
        f"{result['architecture']}, {number_of(result['updates'], 'updates')}, {result['split']}: masked-LM "
        f"perplexity {result['perplexity_per_token']:.2f} over {result['masked_tokens']:,} masked tokens"
    )


def lra(path: Path, options: argparse.Namespace) -> Iterator[Result]:
    """For `evaluate lra`."""
    from lab.measure.accuracy import evaluate_lra
    from lab.run.checkpoint import usual_device
    from lab.run.kinds import KINDS, read_lra

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
    """For `evaluate images`."""
    from lab.measure.pixels import evaluate
    from lab.run.checkpoint import usual_device
    from lab.run.kinds import Classification, Pixels, load_image_model

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
    "mlm": Command(
        "scripts/lab.sh evaluate mlm",
        EVAL_MLM,
        "of scripts/pretrain_roberta.sh",
        "a folder written by data-prep/roberta.sh",
        ("checkpoint", "split", "masked_tokens", "perplexity_per_token"),
        masked_lm,
        describe_masked_lm,
    ),
    "lra": Command(
        "scripts/lab.sh evaluate lra",
        EVALUATE_LRA,
        "of scripts/lab.sh train lra; checkpoint_best.pt is the best on valid",
        "the folder made by data-prep/lra.sh",
        ("checkpoint", "task", "preset", "attention", "split", "accuracy"),
        lra,
        describe_lra,
    ),
    "images": Command(
        "scripts/lab.sh evaluate images",
        EVAL_IMAGES,
        "of scripts/lab.sh train images or train vit; checkpoint_best.pt is the best on valid",
        "made by data-prep/images.sh (default: the training's)",
        ("checkpoint", "architecture", "corpus", "original_files", "split"),
        images,
        describe_images,
        of_images=True,
    ),
}


def parse(kind: str, words: Sequence[str]) -> argparse.Namespace:
    """The options of a kind but `ppl`."""
    command = COMMANDS[kind]
    parser = Parser(command.name, command.text)
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help=command.checkpoint)
    nargs = {"nargs": "?"} if command.of_images else {}
    parser.add_argument("data", type=Path, metavar="DATA", help=command.data, **nargs)
    if command.of_images:
        text = "images at once (default: as in training)"
        parser.add_argument("--batch-size", type=count, metavar="N", help=text)
    add_splits(parser)
    add_gpus(parser)
    return parser.parse_args(words)


def add_gpus(parser: Parser) -> None:
    """--gpus, the same for every evaluation, which uses one at most."""
    text = "0: the CPU; 1: a GPU (default: a GPU if there is one)"
    parser.add_argument("--gpus", type=int, choices=(0, 1), help=text)


def use_gpus(asked: int | None) -> None:
    """Hide the GPUs from this process, before torch looks for them, or raise UserError if there is none."""
    if asked == 0:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    elif asked:
        import torch

        if not torch.cuda.is_available():
            raise UserError("--gpus is 1, but this machine has 0 usable GPUs")


def result_files(
    command: str,
    options: argparse.Namespace,
    checkpoint: Path,
    ours: Ours,
    ending: str = ".json",
    beside: Iterable[str] = (),
) -> dict[str, Path]:
    """By split the file of its result: --out, or <checkpoint>.<split> with `ending`.

    Raises UserError for one that cannot be written, or that holds something else than a result of `command`
    (`ours`), or that of another checkpoint or split. If another command evaluates the model, it names that.
    """
    from user_dir.checks.checkpoints import check_one_model

    check_one_model("CHECKPOINT", str(checkpoint))
    if options.out and len(options.splits) > 1:
        raise UserError("--out names one file, but --split several splits; leave --out out")
    files = {split: options.out or checkpoint.with_suffix(f".{split}{ending}") for split in options.splits}
    for split, out in files.items():
        try:
            check_output(out, ours, [checkpoint], beside)
        except UserError:
            check_command(checkpoint, command)
            raise
        if options.out and out.is_file():
            check_same_result(out, {"checkpoint": shown_path(checkpoint), "split": split})
    return files


def check_same_result(out: Path, wanted: Mapping[str, str]) -> None:
    """UserError if the file `out` holds the result of another checkpoint or split than `wanted`."""
    record = read_json(out)
    for key, value in wanted.items():
        if record.get(key, value) != value:
            raise UserError(
                f"{out} holds the result of the {key} {record[key]}, not {value}; move it away, or name "
                "another file with --out"
            )


def check_command(path: Path, command: str) -> None:
    """UserError, which names the right command, if this one does not evaluate the model in `path`."""
    from lab.run.checkpoint import read_checkpoint
    from lab.run.kinds import KINDS

    try:
        task = read_checkpoint(path).task_name
    except UserError:  # no checkpoint at all
        return
    right = KINDS[task].evaluation if task in KINDS else command
    if right != command:
        raise UserError(f"{path} holds a model of the task {task}; evaluate it with {right}")


def averaged(checkpoint: "Checkpoint") -> Result:
    """What a result says of a checkpoint whose weights are an average."""
    return {"averaged": checkpoint.averaged} if checkpoint.averaged else {}


def publish(result: Result, out: Path, text: str) -> None:
    """Write a result, and print what it says."""
    write_json(out, result)
    if names := result.get("averaged"):
        text += f"\n  average of  {', '.join(names)}"
    print(f"{text}\n  written to  {shown_path(out)}", flush=True)


def parse_perplexity(words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """The options of `evaluate ppl`, and what is left for fairseq-eval-lm."""
    options = Parser(PPL_SCRIPT, add_help=False)
    add_splits(
        options,
        "<checkpoint>.<split>.json beside the checkpoint, with --carry-state "
        "<checkpoint>.<split>.carried.json",
    )
    add_gpus(options)
    options.add_argument(
        "--context-window",
        type=int,
        default=0,
        metavar="N",
        help="let every token see at least N earlier ones (slower; published figures often do)",
    )
    options.add_argument(
        "--compile",
        action="store_true",
        help="on a GPU: compile the model with torch.compile, which takes a minute first",
    )
    options.add_argument(
        "--carry-state",
        action="store_true",
        help="read the split from end to end, states carried from segment to segment",
    )
    options.add_argument(
        "--streams",
        type=count,
        metavar="B",
        help=f"with --carry-state: read the split as B texts side by side (default: {STREAMS})",
    )
    options.add_argument(
        "--segment",
        type=count,
        metavar="N",
        help=f"with --carry-state: tokens of a stream read at a time (default: {SEGMENT}), which changes "
        "speed and memory, not the perplexity",
    )
    options.add_argument(
        "--reset-at-documents",
        action="store_true",
        help="with --carry-state: start again at each of WikiText's articles, B of them side by side",
    )
    usage = f"{PPL_SCRIPT} CHECKPOINT DATA [options] [fairseq-eval-lm flags ...]"
    parser = Parser(PPL_SCRIPT, EVAL_PPL, parents=[options], usage=usage)
    parser.add_argument(
        "checkpoint",
        type=Path,
        metavar="CHECKPOINT",
        help="such as runs/wikitext103/transnormer_t1/checkpoint_best.pt",
    )
    parser.add_argument(
        "data",
        type=Path,
        metavar="DATA",
        help="a folder written by data-prep/ with the dictionary used in training",
    )
    given, extra = parse_before_flags(parser, options, words)
    if not given.carry_state and (given.streams or given.segment or given.reset_at_documents):
        parser.error("--streams, --segment and --reset-at-documents go with --carry-state")
    if given.carry_state and given.compile:
        parser.error("--compile does not go with --carry-state")
    if given.carry_state and given.context_window:
        parser.error("--context-window does not go with --carry-state, whose tokens see all earlier ones")
    given.streams, given.segment = given.streams or STREAMS, given.segment or SEGMENT
    return given, extra


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


def evaluate_perplexity(options: argparse.Namespace, extra: Sequence[str]) -> None:
    """For `evaluate ppl`: each split, its states carried or not."""
    from lab.data.prepared import open_prepared
    from lab.measure.carried_state import BESIDE, evaluate_carried, read_extra, write_carried
    from lab.measure.perplexity import evaluate
    from lab.run.checkpoint import read_language_model

    path = options.checkpoint.absolute()
    if options.carry_state:
        files = result_files(PPL_SCRIPT, options, path, json_with(*CARRIED_KEYS), ".carried.json", BESIDE)
    else:
        files = result_files(PPL_SCRIPT, options, path, json_with(*PPL_KEYS))
    checkpoint = read_language_model(path)
    data = open_prepared(options.data.absolute(), tuple(options.splits))
    overrides = read_extra(extra) if options.carry_state else {}
    for split, out in files.items():
        if options.carry_state:
            result = evaluate_carried(checkpoint, data, split, options, overrides)
            write_carried({**result, **averaged(checkpoint)}, out)
            continue
        result = evaluate(checkpoint, data, split, options.context_window, extra, options.compile)
        publish({**result, **averaged(checkpoint)}, out, describe_perplexity(result))


def main(kind: str) -> None:
    """Evaluate a model of this kind on each split."""
    words = sys.argv[1:]
    if kind == "ppl":
        given = parse_perplexity(words)
        use_gpus(given[0].gpus)
        import_quickly("lab.run.checkpoint")
        evaluate_perplexity(*given)
        return
    options, command = parse(kind, words), COMMANDS[kind]
    use_gpus(options.gpus)
    import_quickly("lab.run.checkpoint")
    from lab.run.checkpoint import read_checkpoint
    from lab.run.folder import whole_checkpoint

    path = whole_checkpoint(options.checkpoint.absolute())
    files = result_files(command.name, options, path, json_with(*command.keys))
    for result in command.evaluate(path, options):
        whole = {**result, **averaged(read_checkpoint(path))}
        publish(whole, files[result["split"]], command.describe(result))
