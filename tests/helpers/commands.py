"""Commands called in the process of the tests."""

import sys
from collections.abc import Iterable
from importlib import import_module
from types import ModuleType

from pytest import MonkeyPatch

from lab import cli
from lab.console import run_command

VERBS = {command.module: verb for verb, command in cli.COMMANDS.items()}
OPTIONAL = ("check faults", "check gpu", "export", "figures", "import")
"""Verbs of lab/checks, lab/export and lab/figures, which a copy of the project may lack."""
Command = ModuleType | str  # a module, its full name, or the command as one types it


def offered(rows: Iterable[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """The rows, each of which begins with a command, without those of missing OPTIONAL verbs."""
    missing = tuple(f"{cli.LAB} {verb} " for verb in OPTIONAL if verb not in cli.COMMANDS)
    return [row for row in rows if not row[0].startswith(missing)]


def call(command: Command, *arguments: object) -> None:
    """Run a command, which ends as it would in a script."""
    name = command if isinstance(command, str) else command.__name__
    verb = VERBS.get(name.removeprefix("lab."))
    typed = verb or (name if "/" in name else None)
    with MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["lab", *(typed or name).split(), *map(str, arguments)][not typed :])
        run_command(cli.run if typed else import_module(name).main)
