"""Users' mistakes, each as a one-line message."""

import os
import re
import sys
from collections.abc import Collection
from traceback import walk_tb
from types import TracebackType

from conventions import Diverged, UserError, sentence_of

__all__ = ["Diverged", "UserError", "check_choice", "install_excepthook"]


def check_choice(what: str, value: object, choices: Collection[str]) -> None:
    """UserError, which begins with `what` and the value, unless the value is one of the `choices`."""
    if value not in choices:
        raise UserError(f"{what} {value!r}; choose one of {', '.join(choices)}")


def sentence_of_fairseq(error: BaseException) -> str | None:
    """The sentence with which fairseq refuses an option or asks for a package, in errors of many kinds."""
    text = " ".join(str(error).split())
    packages = [frame.f_globals.get("__package__") or "" for frame, _ in walk_tb(error.__traceback__)]
    from_fairseq = packages and re.match(r"fairseq(_cli)?\b", packages[-1])
    return text if from_fairseq and re.search(r"(^|\s)--[a-z]|^Please install", text) else None


def install_excepthook() -> None:
    """Print a UserError that ends the program as one line; with FAIRSEQ_TRACEBACK=1 the traceback, too.

    The same goes for errors of fairseq's that name an option or a missing package. Applied twice it changes
    nothing. Hydra prints its own tracebacks unless told otherwise.
    """
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")
    previous = sys.excepthook
    if getattr(previous, "prints_user_errors", False):
        return

    def hook(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        if issubclass(kind, KeyboardInterrupt):
            print("interrupted", file=sys.stderr)
            return
        message = sentence_of(value) or sentence_of_fairseq(value)
        if message is None or os.environ.get("FAIRSEQ_TRACEBACK", "0") != "0":
            previous(kind, value, trace)
        if message is not None:
            print(f"error: {message}", file=sys.stderr)

    hook.prints_user_errors = True
    sys.excepthook = hook
