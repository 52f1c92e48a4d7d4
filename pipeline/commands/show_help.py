"""`python -m pipeline commands.show_help STAGE.NAME --help` prints the help of scripts/NAME.sh."""

import sys
from importlib import import_module


def main() -> None:
    """Entry point."""
    import_module(f"pipeline.commands.{sys.argv[1]}").parse(sys.argv[2:])
