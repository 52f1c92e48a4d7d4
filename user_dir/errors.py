"""Users' mistakes, each as a one-line message."""

import os
import sys
from types import TracebackType

from conventions import Diverged, UserError, sentence_of

__all__ = ["Diverged", "UserError", "install_excepthook"]


def install_excepthook() -> None:
    """Print a UserError that ends the program as one line; with FAIRSEQ_TRACEBACK=1 the traceback, too.

    Applied twice it changes nothing. Hydra prints tracebacks of its own unless told otherwise.
    """
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")
    previous = sys.excepthook
    if getattr(previous, "prints_user_errors", False):
        return

    def hook(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        if issubclass(kind, KeyboardInterrupt):
            print("interrupted", file=sys.stderr)
            return
        message = sentence_of(value)
        if message is None or os.environ.get("FAIRSEQ_TRACEBACK", "0") != "0":
            previous(kind, value, trace)
        if message is not None:
            print(f"error: {message}", file=sys.stderr)

    hook.prints_user_errors = True
    sys.excepthook = hook
