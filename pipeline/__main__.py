"""Run one of the commands: `python -m pipeline MODULE ARGUMENTS...`, as `lib.sh` does.

MODULE is named without the package, such as `training.train`.
"""

import importlib
import re
import sys

from pipeline.console import run_command, warn_only
from pipeline.files import ROOT


def command_of(module: str) -> str:
    """The script that runs `module`, as a record of a measurement names it; the module if there is none."""
    call = re.compile(
        rf'^(run_command|run_module|exec_module "\$python") {re.escape(module)} "\$@"$', re.MULTILINE
    )
    for folder in ("scripts", "data-prep"):
        for script in sorted((ROOT / folder).glob("*.sh")):
            if call.search(script.read_text(encoding="utf-8")):
                return f"{folder}/{script.name}"
    return module


if __name__ == "__main__":
    warn_only()  # before the module imports fairseq
    name = sys.argv.pop(1)
    sys.argv[0] = command_of(name)
    run_command(importlib.import_module(f"pipeline.{name}").main)
