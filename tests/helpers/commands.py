"""Commands called in the process of the tests."""

import sys
from importlib import import_module
from types import ModuleType

from pytest import MonkeyPatch

from lab import cli
from lab.console import run_command

VERBS = {command.module: verb for verb, command in cli.COMMANDS.items()}
Command = ModuleType | str  # a module, its full name, or the command as one types it


def call(command: Command, *arguments: object) -> None:
    """Run a command, which ends as it would in a script."""
    name = command if isinstance(command, str) else command.__name__
    verb = VERBS.get(name.removeprefix("lab."))
    typed = verb or (name if "/" in name else None)
    with MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["lab", *(typed or name).split(), *map(str, arguments)][not typed :])
        run_command(cli.run if typed else import_module(name).main)
