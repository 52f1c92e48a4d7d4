"""Shared by all commands: argument types, and how a command fails."""

import argparse
import logging
import math
import sys
import warnings
from argparse import Namespace
from collections.abc import Callable, Sequence
from io import TextIOWrapper
from itertools import takewhile
from pathlib import Path
from typing import Any, NoReturn

from conventions import INTERRUPTED
from lab import children
from lab.errors import UserError, explain

MISSING = "the following arguments are required"
"""How argparse begins to name arguments that are missing."""


class Parser(argparse.ArgumentParser):
    """The command line of `command`, as a person types it; a mistake ends in one sentence.

    `text`, often a module's docstring, is what --help prints before the options; `options` go to argparse.
    """

    def __init__(self, command: str, text: str | None = None, **options: Any) -> None:
        formatter = argparse.RawDescriptionHelpFormatter
        super().__init__(command, description=text, formatter_class=formatter, allow_abbrev=False, **options)
        self.register("type", Path, path)

    def error(self, message: str) -> NoReturn:
        """Called by argparse for any mistake."""
        raise UserError(f"{message}; see {self.prog} --help")


def parse_before_flags(parser: Parser, options: Parser, words: Sequence[str]) -> Namespace:
    """Parse `words`; unknown flags, which go to fairseq, are returned as `flags`.

    `parser` has the positional arguments, which come first, besides the `options`. UserError says so where
    one of them comes later.
    """
    if {"-h", "--help"} & set(words):
        parser.parse_args(["--help"])
    first = list(takewhile(lambda word: not word.startswith("-"), words))
    given, flags = options.parse_known_args(words[len(first) :])
    late = f"files and folders come before all options: {parser.usage}"
    if flags and not flags[0].startswith("-"):
        parser.error(late)
    try:
        named = parser.parse_args(first)
    except UserError as error:
        if MISSING in str(error) and not all(flag.startswith("-") for flag in flags):
            parser.error(late)
        raise
    return Namespace(**{**vars(named), **vars(given)}, flags=flags)


def split_flags(words: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """A command's own words, and the flags of fairseq-train after `--`."""
    place = words.index("--") if "--" in words else len(words)
    return list(words[:place]), tuple(words[place + 1 :])


def say_loading() -> None:
    """Say on a terminal that torch and fairseq are loaded, which takes seconds."""
    if sys.stderr.isatty():
        print("loading torch and fairseq ...", file=sys.stderr)


def add_device(parser: Parser) -> None:
    """--device, the same for every benchmark."""
    parser.add_argument(
        "--device",
        choices=("auto", "cpu", "cuda"),
        default="auto",
        help="auto (the default): a GPU if there is one",
    )


def add_out_dir(parser: Parser, default: str) -> None:
    """--out for a folder of results, which may also be given without the flag (`parse_intermixed_args`)."""
    parser.add_argument("out_dir", type=Path, nargs="?", metavar="DIR", help="the same as --out")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help=f"folder for the results; default: {default}",
    )


def out_dir(options: Namespace) -> Path | None:
    """The folder of `add_out_dir`, None if it was not given."""
    return options.out or options.out_dir


def warn_only() -> None:
    """Let only warnings reach the terminal; some of fairseq's tasks log more when they are imported."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s", force=True)


def path(text: str) -> Path:
    """An option's file or folder."""
    if not text:
        raise argparse.ArgumentTypeError("it is empty; name a file or folder")
    return Path(text)


def count(text: str, least: int = 1) -> int:
    """An option's whole number of `least` or more."""
    if not text.strip().isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of {least} or more")
    return int(text)


def count_or_zero(text: str) -> int:
    """An option's whole number of 0 or more."""
    return count(text, least=0)


def names(text: str) -> list[str]:
    """An option's names, separated by commas, each once."""
    found = text.split(",")
    if not all(found):
        raise argparse.ArgumentTypeError(f"{text!r} is not a name, or several separated by commas")
    return list(dict.fromkeys(found))


def number_of(number: int, noun: str) -> str:
    """A number and its noun, given in the plural: "1 run", "1,200 runs"."""
    return f"{number:,} {noun.removesuffix('s') if number == 1 else noun}"


def positive(text: str) -> float:
    """An option's number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def run_command(main: Callable[[], None]) -> None:
    """Run a command; errors that a user can fix become one line on stderr and exit code 1.

    SIGTERM and SIGUSR1 end it as `lab/children.py` says, and so does the end of the command that started it.
    """
    children.end_with_parent()
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")  # for letters that the locale lacks, as on stderr
    warnings.simplefilter("ignore")  # the libraries' deprecations do not concern users
    warn_only()
    try:
        with children.handled():
            main()
    except KeyboardInterrupt as interrupted:
        print(f"error: interrupted; {str(interrupted) or 'run the same command again'}", file=sys.stderr)
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        sys.exit(1)  # the reader of our output, such as `head`, has gone
    except Exception as error:
        sentence = explain(error)
        if sentence is None:
            raise
        sys.exit(f"error: {sentence}")
