"""What attention does (the command behind analyse.sh): each subcommand is a module of `studies.analysis`."""

import sys
from importlib import import_module

from pipeline.commands.studies.analyse import parse


def main() -> None:
    """Entry point."""
    options = parse(sys.argv[1:])
    module = import_module(f"pipeline.studies.analysis.{options.what}")
    getattr(module, f"run_{options.what}")(options)
