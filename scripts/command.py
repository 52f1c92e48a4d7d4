"""What the commands of this folder have in common: how they fail, and how they write files."""

import argparse
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from scripts.user_errors import explain
from user_dir.errors import UserError


class Parser(argparse.ArgumentParser):
    """A command line whose mistakes end in one sentence; --help is the shell script's."""

    def __init__(self, command: str) -> None:
        super().__init__(command, add_help=False, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """What argparse calls for any mistake."""
        raise UserError(f"{message}; see {self.prog} --help")


def run_command(main: Callable[[], None]) -> None:
    """Run a command; what a user can mend ends in one sentence on stderr and exit code 1."""
    warnings.simplefilter("ignore")  # the libraries' deprecations are no concern of a user's
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


def write_atomically(path: Path, content: bytes) -> None:
    """Write a whole file or none: under another name first, then renamed."""
    partial = path.with_name(f"{path.name}.part")
    try:
        partial.write_bytes(content)
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
