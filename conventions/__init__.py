"""What the plugin and the commands that start it agree on; imports neither torch nor fairseq."""

import errno
import re
import signal


class UserError(ValueError):
    """A user's mistake; the one-line message says what is wrong and what to do."""


class Diverged(UserError):
    """A training whose loss or gradients are no longer finite."""


def sentence_of(error: BaseException) -> str | None:
    """The sentence of a UserError, also one that comes from another process in the text of a traceback."""
    text = str(error)
    if isinstance(error, UserError) and "\nTraceback" not in text and "\nOriginal Traceback" not in text:
        return text
    raised = re.findall(rf"^{__name__}\.\w+: (.+)$", text, re.MULTILINE)
    return raised[-1] if raised else None


OUT_OF_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
INTERRUPTED = 128 + signal.SIGINT
"""Exit code after Ctrl-C."""
STOPPED = 75
"""Exit code of what was asked to stop: the same command resumes (EX_TEMPFAIL of <sysexits.h>)."""
REQUESTS = (signal.SIGTERM, signal.SIGUSR1)
"""Schedulers send them some time before they kill a job."""
PREPARED = "preparation.json"
"""In a folder of prepared data: what they were made from."""
