"""Users' mistakes, each as a one-line message."""

import sys
from types import TracebackType


class UserError(ValueError):
    """A mistake of the user's; its message says in one sentence what is wrong and what to do."""


def _message(value: BaseException) -> str | None:
    """The sentence of a UserError, also when a spawned worker's traceback text carries it."""
    if isinstance(value, UserError):
        return str(value)
    if type(value).__name__ == "ProcessRaisedException":
        last = str(value).strip().splitlines()[-1:]
        if last and last[0].startswith(f"{__name__}.UserError: "):
            return last[0].partition(": ")[2]
    return None


def install_excepthook() -> None:
    """Print a UserError that ends the program as one line, without a traceback; once per process."""
    previous = sys.excepthook
    if getattr(previous, "prints_user_errors", False):
        return

    def hook(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        message = _message(value)
        if message is None:
            previous(kind, value, trace)
        else:
            print(f"error: {message}", file=sys.stderr)

    hook.prints_user_errors = True
    sys.excepthook = hook
