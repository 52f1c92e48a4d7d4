"""What the plugin and the commands that start it agree on; imports neither torch nor fairseq."""

import errno
import signal


class UserError(ValueError):
    """A user's mistake; the one-line message says what is wrong and what to do."""


class Diverged(UserError):
    """A training whose loss or gradients are no longer finite."""


OUT_OF_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
INTERRUPTED = 128 + signal.SIGINT
"""Exit code after Ctrl-C."""
STOPPED = 75
"""Exit code of what was asked to stop: the same command resumes (EX_TEMPFAIL of <sysexits.h>)."""
REQUESTS = (signal.SIGTERM, signal.SIGUSR1)
"""Schedulers send them some time before they kill a job."""
PREPARED = "preparation.json"
"""In a folder of prepared data: what they were made from."""
