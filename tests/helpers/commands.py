"""Commands called in the process of the tests."""

import sys
from importlib import import_module
from types import ModuleType

from pytest import MonkeyPatch

from lab.__main__ import MODULES
from lab.console import run_command

Command = ModuleType | str  # a module, its full name, or that of the script that runs it


def call(command: Command, *arguments: object) -> None:
    """Run a command, which ends as that of a script does."""
    name = command if isinstance(command, str) else command.__name__
    module = import_module(f"lab.{MODULES[name]}" if name in MODULES else name)
    with MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [name, *map(str, arguments)])
        run_command(module.main)
