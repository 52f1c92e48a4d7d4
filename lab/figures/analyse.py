"""What attention does: the analyses and figures of TransNormer and LLN, from theory and from trained models.

    scripts/lab.sh figures theory       figures and checks that need no model
    scripts/lab.sh figures attention    local scores, maps, entropy, spectral gap, log-normality of weights
    scripts/lab.sh figures training     the same figures over the checkpoints of a run
    scripts/lab.sh figures gradients    deviation of gradients, loss and loss scale, from logs of runs
    scripts/lab.sh figures bounds       gradients by the scores of a checkpoint, and their bounds
    scripts/lab.sh figures temperature  loss of LLN with fixed exponents
    scripts/lab.sh figures tradeoff     accuracy or loss against speed and memory
    scripts/lab.sh figures report       pages (README.md) beside the figures

scripts/study.sh analysis_runs trains the runs that they read. Each takes --help. A figure becomes
SUBCOMMAND/NAME.json and .png in --out, by default runs/figures; --out results/analysis renews the figures of
the project. A figure that exists with the same settings is not made again; other settings need another --out.
--redraw makes the PNG from the JSON files alone.
"""

import argparse
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path

from lab.console import Parser, count, say_loading
from lab.files import ROOT, check_output_folder

COMMAND = "scripts/lab.sh figures"
FIGURES = ROOT / "runs" / "figures"
LONGEST = 2048
"""Tokens of a sequence, unless --force is given."""
THEORY = {
    "score-gradients": "theory.score_gradients",
    "bounds": "theory.bounds",
    "temperature": "theory.theorems",
    "kernels": "theory.kernels",
    "softmax-lognormal": "theory_lognormal.softmax",
    "sums-of-lognormals": "theory_lognormal.sums",
    "densities": "theory_lognormal.densities",
    "moment-matching": "theory_lognormal.moment_matching",
}
"""Figures that need no model, and the function that makes each."""


def _several(parser: Parser, redraw: bool, name: str, what: str) -> None:
    """Checkpoints or runs: one at least, but none need be named to draw from JSON files."""
    number = "*" if redraw else "+"
    parser.add_argument(f"{name}s", type=Path, nargs=number, metavar=name.upper(), help=what)


def _theory(parser: Parser, redraw: bool) -> None:
    parser.add_argument("--only", metavar="NAMES", help=f"some of {', '.join(THEORY)}, separated by commas")
    parser.add_argument(
        "--head-dim", type=count, default=64, metavar="N", help="width of a drawn head (default: %(default)s)"
    )
    parser.add_argument(
        "--length", type=count, default=512, metavar="N", help="tokens of a drawn sequence (default: 512)"
    )


def _checkpoints(parser: Parser, redraw: bool) -> None:
    _several(parser, redraw, "checkpoint", "checkpoints of language models or RoBERTa encoders")
    _sequences(parser, redraw)
    parser.add_argument(
        "--layers",
        default="all",
        metavar="NUMBERS",
        help="layers, such as 0,3, counted from 0 (default: all)",
    )
    parser.add_argument(
        "--rows",
        choices=("abs", "sum", "raw"),
        default="abs",
        help="rows of a signed matrix: absolute values over their sum (abs), entries over their sum, as the "
        "authors of TransNormer plot them (sum), or as they are (raw); default: %(default)s",
    )
    parser.add_argument(
        "--score",
        choices=("definition", "appendix-f", "appendix-f-blocks"),
        default="definition",
        help="the local score of the paper's text, or what its Appendix F computes from N x N matrices or, "
        "for block attention, from N x C ones; default: %(default)s",
    )


def _sequences(parser: Parser, redraw: bool, sequences: int = 16, may_mask: bool = True) -> None:
    parser.add_argument(
        "--data",
        type=Path,
        required=not redraw,
        metavar="DATA",
        help="the prepared corpus of the training",
    )
    parser.add_argument(
        "--split", default="valid", metavar="NAME", help="split of the sequences (default: %(default)s)"
    )
    parser.add_argument(
        "--sequences",
        type=count,
        default=sequences,
        metavar="N",
        help="number of sequences (default: %(default)s)",
    )
    parser.add_argument(
        "--length", type=count, metavar="N", help="tokens of a sequence (default: that of the training)"
    )
    parser.add_argument(
        "--force",
        action="store_true",
        help=f"allow sequences of more than {LONGEST:,} tokens, whose matrices take over 32 MiB each",
    )
    parser.set_defaults(masked=False)
    if may_mask:
        parser.add_argument("--masked", action="store_true", help="mask tokens as in pre-training")


def _training(parser: Parser, redraw: bool) -> None:
    _several(parser, redraw, "run", "folders with checkpoints")
    parser.add_argument(
        "--checkpoints",
        type=count,
        default=20,
        metavar="N",
        help="at most N checkpoints of a run, evenly spaced, including the last (default: %(default)s)",
    )
    _sequences(parser, redraw)


def _gradients(parser: Parser, redraw: bool) -> None:
    _several(parser, redraw, "run", "folders with a train.log")
    parser.add_argument(
        "--at-checkpoints",
        action="store_true",
        help="also the deviation over minibatches at each checkpoint, for all parameters and for the "
        "attention of each layer (needs --data)",
    )
    parser.add_argument("--data", type=Path, metavar="DATA", help="the prepared corpus of --at-checkpoints")
    parser.add_argument(
        "--minibatches",
        type=count,
        metavar="N",
        help="minibatches per checkpoint (default: 16)",
    )


def _bounds(parser: Parser, redraw: bool) -> None:
    parser.add_argument(
        "checkpoint",
        type=Path,
        nargs="?" if redraw else None,
        metavar="CHECKPOINT",
        help="checkpoint of a language model or RoBERTa encoder",
    )
    _sequences(parser, redraw, 4, may_mask=False)


def _temperature(parser: Parser, redraw: bool) -> None:
    _several(parser, redraw, "run", "folders of LLN runs, fixed and matched")


def _tradeoff(parser: Parser, redraw: bool) -> None:
    parser.add_argument(
        "--speed",
        choices=("train", "infer"),
        default="train",
        help="speed of training or of inference (default: %(default)s)",
    )
    parser.add_argument(
        "--length",
        choices=("1K", "2K", "3K", "4K", "5K"),
        default="2K",
        help="length at which the paper measured speeds (default: %(default)s)",
    )


SUBCOMMANDS: dict[str, tuple[str, Callable[[Parser, bool], None]]] = {
    "theory": ("Figures and checks that need no model.", _theory),
    "attention": (
        "What attention does in trained models: one figure for all checkpoints given.",
        _checkpoints,
    ),
    "training": (
        "Temperature, entropy, spectral gap and LLN's exponents over a run's checkpoints.",
        _training,
    ),
    "gradients": (
        "Relative deviation of gradients, loss and loss scale, from logs of runs.",
        _gradients,
    ),
    "bounds": ("The largest gradient by a score in each layer, and its bound.", _bounds),
    "tradeoff": ("The paper's accuracies against its speeds, and ours where we measured them.", _tradeoff),
    "temperature": ("The loss of LLN with fixed exponents, and with matched ones.", _temperature),
    "report": (
        "Write pages (README.md) of the figures: each with the paper's statement.",
        lambda parser, redraw: None,
    ),
}
MODULES = {"gradients": "logged_runs", "temperature": "logged_runs"}
"""Where `run_NAME` of a subcommand is, if not in the module of its name."""


def parse(words: Sequence[str]) -> argparse.Namespace:
    """The command line; `what` is the subcommand."""
    general = Parser(COMMAND, __doc__, usage=f"{COMMAND} SUBCOMMAND [options]")
    general.add_argument("what", choices=SUBCOMMANDS, metavar="SUBCOMMAND", help=", ".join(SUBCOMMANDS))
    what = general.parse_args(words[:1]).what
    text, add_options = SUBCOMMANDS[what]
    parser = Parser(f"{COMMAND} {what}", text)
    add_options(parser, "--redraw" in words)
    parser.add_argument(
        "--out",
        type=Path,
        default=FIGURES,
        metavar="DIR",
        help="folder for the figures (default: runs/figures)",
    )
    if what != "report":
        parser.add_argument(
            "--redraw", action="store_true", help="only draw the PNG files again, from the JSON files"
        )
    options = parser.parse_args(words[1:])
    options.what = what
    return options


def function(name: str) -> Callable:
    """Import the function that THEORY or a subcommand names; its module takes seconds to load."""
    module, _, own = name.partition(".")
    return getattr(import_module(f"lab.figures.{module}"), own)


def main(options: argparse.Namespace) -> None:
    """Run the subcommand, unless its JSON files are drawn again."""
    check_output_folder(options.out, "--out")
    if options.what == "report":
        from lab.publish.analysis import write_report  # loads matplotlib

        write_report(options.out.absolute())
    elif options.redraw:
        function("figure.redraw")(options)
    else:
        say_loading()
        function(f"{MODULES.get(options.what, options.what)}.run_{options.what}")(options)
