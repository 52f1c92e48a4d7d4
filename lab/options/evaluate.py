"""The options of the commands that evaluate a checkpoint, predict with it, or draw from it."""

import os
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.console import Parser, count, count_or_zero, names, parse_before_flags
from lab.errors import UserError

PPL_SCRIPT = "scripts/eval_ppl.sh"
"""The command's name in messages."""
BESIDE_CARRIED = (".md", ".png")
"""Endings of the table and the plot beside the JSON of --carry-state."""
STREAMS, SEGMENT = 1, 512
EVAL_PPL = """\
Perplexity of a trained language model on a prepared corpus, as fairseq-eval-lm computes it.

Prints and writes the loss in bits and nats per token, the perplexity per token and per word (words of the
raw text are separated by white space, and each end of a line counts as one), and the number of tokens.
A split without tokens is an error.

With --carry-state the model reads the split from end to end in segments and carries its state from one to the
next: every token sees all earlier tokens of its stream. Perplexity, speed and memory by position
are printed as a table, written to the JSON and plotted beside it.
"""
EVAL_MLM = """\
Masked-LM perplexity of a pre-trained encoder.

15 % of the tokens are masked as in training, the same tokens for every encoder. The result is printed and
written as JSON.
"""
EVALUATE_LRA = """\
Accuracy of a model of Long Range Arena.

Every example counts, including those of an incomplete last batch. The result is printed and written as JSON,
with preset, attention, updates, seed and the origin of the data.
"""
EVAL_IMAGES = """\
Bits per dimension of a model of images byte by byte, or accuracy of a Vision Transformer.

Every byte counts except those that training gave to the model (--given-pixels). The result is printed and
written as JSON.
"""
PREDICT = """\
Predict with a fine-tuned encoder for a file of its GLUE task.

If the file has labels, the task's metrics are printed, too.
"""
SAMPLE = """\
Draw images from a model byte by byte, or complete the upper rows of test images.

Writes a grid of images as PNG and the array beside it (.npy, uint8 of shape (images, height, width,
channels)). With --complete each row of the grid shows the given part, the completed image and the original.
An image depends only on the seed and its number, not on --batch-size. A model trained with --given-pixels has
not learned the bytes at the start of an image: they are taken from test images.
"""


@dataclass(frozen=True)
class EvaluationHelp:
    """The help of a command that evaluates one kind of model; that of language models has more options.

    `text` is its help, `checkpoint` and `data` the help of the arguments. Models of images know the data of
    their training.
    """

    name: str
    text: str
    checkpoint: str
    data: str
    of_images: bool = False


EVALUATION_HELP = {
    "mlm": EvaluationHelp(
        "scripts/lab.sh evaluate mlm",
        EVAL_MLM,
        "written by scripts/pretrain_roberta.sh",
        "a folder made by data-prep/roberta.sh",
    ),
    "lra": EvaluationHelp(
        "scripts/lab.sh evaluate lra",
        EVALUATE_LRA,
        "written by scripts/lab.sh train lra; checkpoint_best.pt is the best on valid",
        "a folder made by data-prep/lra.sh",
    ),
    "images": EvaluationHelp(
        "scripts/lab.sh evaluate images",
        EVAL_IMAGES,
        "written by scripts/lab.sh train images or train vit; checkpoint_best.pt is the best on valid",
        "a folder made by data-prep/images.sh (default: the training data)",
        of_images=True,
    ),
}


def evaluation(words: Sequence[str], kind: str) -> Namespace:
    """The options of one of EVALUATION_HELP; `command` is its name."""
    command = EVALUATION_HELP[kind]
    parser = Parser(command.name, command.text)
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help=command.checkpoint)
    nargs = {"nargs": "?"} if command.of_images else {}
    parser.add_argument("data", type=Path, metavar="DATA", help=command.data, **nargs)
    if command.of_images:
        text = "images per batch (default: as in training)"
        parser.add_argument("--batch-size", type=count, metavar="N", help=text)
    add_splits(parser)
    add_gpus(parser)
    parser.set_defaults(kind=kind, command=command.name)
    return hidden(parser.parse_args(words))


def add_splits(parser: Parser, out: str = "<checkpoint>.<split>.json beside the checkpoint") -> None:
    """--split, which may be several, and --out, the same for every evaluation; `out` says its default."""
    parser.add_argument(
        "--split",
        dest="splits",
        type=names,
        default="test",
        metavar="SPLIT",
        help="train, valid or test, or several of them separated by commas (default: test)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help=f"where the JSON of one split goes (default: {out}); a result on other data or with other "
        "settings is not replaced",
    )


def add_gpus(parser: Parser) -> None:
    """--gpus, the same for every evaluation, which uses one at most."""
    text = "0: the CPU; 1: a GPU (default: a GPU if there is one)"
    parser.add_argument("--gpus", type=int, choices=(0, 1), help=text)


def hidden(options: Namespace) -> Namespace:
    """The options; with --gpus 0 torch, which is not loaded yet, will find no GPU."""
    if options.gpus == 0:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    return options


def add_carried(options: Parser) -> None:
    """--carry-state, and the options that go with it."""
    options.add_argument(
        "--carry-state",
        action="store_true",
        help="read the split from end to end and carry the state from segment to segment",
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


def perplexity(words: Sequence[str]) -> Namespace:
    """The options of `evaluate ppl`; `flags` are the flags for fairseq-eval-lm."""
    options = Parser(PPL_SCRIPT, add_help=False)
    add_splits(
        options,
        "<checkpoint>.<split>.json beside the checkpoint, with --carry-state "
        "<checkpoint>.<split>.carried.json",
    )
    add_gpus(options)
    options.add_argument(
        "--context-window",
        type=count_or_zero,
        default=0,
        metavar="N",
        help="let every token see at least N earlier tokens (slower; published figures often do)",
    )
    options.add_argument(
        "--compile",
        action="store_true",
        help="on a GPU: compile the model with torch.compile, which first takes a minute",
    )
    add_carried(options)
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
        help="a folder made by data-prep/ with the dictionary used in training",
    )
    given = parse_before_flags(parser, options, words)
    if not given.carry_state and (given.streams or given.segment or given.reset_at_documents):
        parser.error("--streams, --segment and --reset-at-documents go with --carry-state")
    if given.carry_state and given.compile:
        parser.error("--compile does not go with --carry-state")
    if given.carry_state and given.context_window:
        parser.error("--context-window does not go with --carry-state, whose tokens see all earlier ones")
    given.kind, given.command = "carried" if given.carry_state else "ppl", PPL_SCRIPT
    given.streams, given.segment = given.streams or STREAMS, given.segment or SEGMENT
    return hidden(given)


def prediction(words: Sequence[str]) -> Namespace:
    """The options of `predict`."""
    parser = Parser("scripts/lab.sh predict", PREDICT)
    parser.add_argument(
        "checkpoint",
        type=Path,
        metavar="CHECKPOINT",
        help="kept by scripts/finetune_glue.sh, such as .../CoLA/3e-05/seed1/checkpoint_best.pt; "
        "dictionary and tokeniser lie beside it",
    )
    parser.add_argument("--task", required=True, help="the task of the fine-tuning, such as CoLA")
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


def drawing(words: Sequence[str]) -> Namespace:
    """The options of `sample`; UserError for a share or seed that is out of range."""
    parser = Parser("scripts/lab.sh sample", SAMPLE)
    parser.add_argument(
        "checkpoint", type=Path, metavar="CHECKPOINT", help="written by scripts/lab.sh train images"
    )
    parser.add_argument(
        "data",
        type=Path,
        nargs="?",
        metavar="DATA",
        help="a folder made by data-prep/images.sh, if test images are needed (default: the training data)",
    )
    parser.add_argument(
        "--count", type=count, default=64, metavar="N", help="number of images (default: %(default)s)"
    )
    parser.add_argument(
        "--complete",
        type=float,
        metavar="SHARE",
        help="complete test images of which this share of the rows is given, such as 0.5 for the upper half",
    )
    parser.add_argument("--seed", type=int, default=1, help="random seed of the draws (default: %(default)s)")
    parser.add_argument(
        "--batch-size", type=count, default=64, metavar="N", help="images per batch (default: %(default)s)"
    )
    parser.add_argument(
        "--recompute",
        action="store_true",
        help="compute the whole prefix again for every byte instead of keeping a state, for comparison",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="the PNG (default: <checkpoint>.samples.png or .completed.png)",
    )
    options = parser.parse_args(words)
    if options.complete is not None and not 0 < options.complete < 1:
        raise UserError(f"--complete is {options.complete}; it must be a share of the rows between 0 and 1")
    if options.seed < 0:
        raise UserError(f"--seed is {options.seed}; it must be 0 or more")
    return options
