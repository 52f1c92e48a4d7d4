"""Run a fairseq command; a failure prints one line `error: ...` instead of a traceback.

    python -m pipeline.training.child {train,interactive} ARGUMENTS...

The arguments are those of `fairseq-train` and the like. All output goes to stdout, for a log: `logged_run.py`
starts this and shows the user only what matters.
"""

import errno
import json
import logging
import os
import resource
import sys
import traceback
from collections.abc import Sequence

import torch

from conventions import INTERRUPTED
from pipeline.child_process import end_with_parent
from pipeline.errors import explain
from pipeline.training.light_start import import_quickly

logger = logging.getLogger("usage")


def peak_memory() -> int:
    """The most memory held so far in bytes: of the GPU if one is in use, else of this process."""
    if torch.cuda.is_initialized():
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts in KiB


def log_like_fairseq() -> None:
    """fairseq's own logging, which its imports have prevented."""
    logging.basicConfig(
        format="%(asctime)s | %(levelname)s | %(name)s | %(message)s",
        datefmt="%Y-%m-%d %H:%M:%S",
        level=logging.INFO,
        stream=sys.stdout,
        force=True,
    )


def run_here(command: str, arguments: Sequence[str]) -> None:
    """Run `fairseq-<command>` in this process; what it prints ends in its peak of memory."""
    before, sys.argv = sys.argv, [f"fairseq-{command}", *arguments]
    log_like_fairseq()
    try:
        import_quickly(f"fairseq_cli.{command}").cli_main()
    finally:
        sys.argv = before
    logger.info(json.dumps({"peak_memory": peak_memory()}))


def main() -> None:
    end_with_parent()
    command, *arguments = sys.argv[1:]
    try:
        run_here(command, arguments)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except Exception as error:
        sentence = explain(error)
        if sentence is None:
            traceback.print_exc(file=sys.stdout)
            sentence = f"unexpected {type(error).__name__}: {' '.join(str(error).split())}".removesuffix(": ")
        try:
            print(f"error: {sentence}", flush=True)
        except OSError:  # the disk is full for the log, too
            os._exit(errno.ENOSPC)
        sys.exit(1)


if __name__ == "__main__":
    main()
