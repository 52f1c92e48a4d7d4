"""What all commands have in common: how they read their arguments and how they fail."""

import argparse
import logging
import math
import sys
import warnings
from collections.abc import Callable
from typing import NoReturn

from pipeline.errors import UserError, explain


class Parser(argparse.ArgumentParser):
    """A command line whose mistakes end in one sentence; --help is the shell script's."""

    def __init__(self, command: str) -> None:
        super().__init__(command, add_help=False, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """What argparse calls for any mistake."""
        raise UserError(f"{message}; see {self.prog} --help")


def warn_only() -> None:
    """Let only warnings reach the terminal; some of fairseq's tasks log more when they are imported."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s", force=True)


def count(text: str) -> int:
    """An option's whole number from 1 up."""
    if not text.strip().isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 up")
    return int(text)


def positive(text: str) -> float:
    """An option's number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0")
    return value


def run_command(main: Callable[[], None]) -> None:
    """Run a command; what a user can mend ends in one sentence on stderr and exit code 1."""
    warnings.simplefilter("ignore")  # the libraries' deprecations are no concern of a user's
    warn_only()
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(1)  # the reader of our output, such as `head`, has gone
    except Exception as error:
        sentence = explain(error)
        if sentence is None:
            raise
        sys.exit(f"error: {sentence}")


class CommandLine(argparse.ArgumentParser):
    """A command line described by a module's docstring; a mistake ends in one sentence."""

    def __init__(self, description: str | None) -> None:
        formatter = argparse.RawDescriptionHelpFormatter
        super().__init__(description=description, formatter_class=formatter, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """What argparse calls for any mistake."""
        raise UserError(f"{message}; see {self.prog} --help")
