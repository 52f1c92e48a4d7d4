"""Run a Python module in a process that ends when the one that started it does.

    python -P pipeline/child_process.py MODULE ARGUMENTS...

The environment that `started_by_us` returns belongs to it. The processes it forks end with it, too.
"""

import ctypes
import os
import runpy
import signal
import sys

PARENT = "PARENT_PROCESS"
PR_SET_PDEATHSIG = 1  # of <linux/prctl.h>


def started_by_us() -> dict[str, str]:
    """What the environment of a child must hold for `end_with_parent`."""
    return {PARENT: str(os.getpid())}


def end_with_parent() -> None:
    """Have the kernel end this process when the one that started it dies, however it dies (Linux)."""
    parent = os.environ.pop(PARENT, None)
    if parent is None or not sys.platform.startswith("linux"):
        return
    _kill_with_parent()
    if os.getppid() != int(parent):  # it died before the lines above
        os.kill(os.getpid(), signal.SIGKILL)


def _kill_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    end_with_parent()
    # Not for training: the kernel goes by the thread that forks, and fairseq's data loaders have short ones.
    os.register_at_fork(after_in_child=_kill_with_parent)
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
