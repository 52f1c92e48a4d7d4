"""Run one of the commands: `python -m pipeline MODULE ARGUMENTS...`, as `lib.sh` does.

MODULE is named without the package, such as `training.train`.
"""

import importlib
import sys

from pipeline.console import run_command, warn_only

if __name__ == "__main__":
    warn_only()  # before the module imports fairseq
    name = sys.argv[0] = sys.argv.pop(1)
    run_command(importlib.import_module(f"pipeline.{name}").main)
