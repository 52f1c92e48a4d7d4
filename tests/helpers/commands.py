"""Commands called in the process of the tests."""

import sys
from importlib import import_module
from types import ModuleType

from pytest import MonkeyPatch

from lab import cli
from lab.console import run_command

Command = ModuleType | str  # a module, its full name, or the command as one types it


def call(command: Command, *arguments: object) -> None:
    """Run a command, which ends as it would in a script."""
    typed = isinstance(command, str) and "/" in command
    name = command if isinstance(command, str) else command.__name__
    words = [*name.split(), *map(str, arguments)]
    with MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["lab", *words] if typed else words)
        run_command(cli.run if typed else import_module(name).main)
