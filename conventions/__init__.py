"""Conventions between the plugin and the commands that start it; imports neither torch nor fairseq."""

import errno
import os
import re
import signal
from pathlib import Path


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
"""Exit code after a requested stop; rerun to resume (EX_TEMPFAIL of <sysexits.h>)."""
REQUESTS = (signal.SIGTERM, signal.SIGUSR1)
"""Schedulers send them some time before they kill a job."""
PREPARED = "preparation.json"
"""In a folder of prepared data: how they were made, and from what."""
RUN_DATA = "data.json"
"""In the folder of a run: its data, their fingerprint, and the state of each file."""
LOCK = ".run.lock"
"""In the folder of a run: the lock that keeps other runs out."""
LOCKED = "LINEAR_ATTENTION_LOCKED"
"""Environment variable: the folder whose lock this process holds, or the one that has started it."""
OWN_ATTENTIONS = "TRANSNORMER_ATTENTIONS"
"""The variable that names folders with a user's own attentions, separated by `:`."""


def own_attention_files(below: str = "") -> list[Path]:
    """The Python files in those folders, or in their folder `below`; UserError for a missing folder."""
    files = []
    for word in filter(None, os.environ.get(OWN_ATTENTIONS, "").split(os.pathsep)):
        if not Path(word).is_dir():
            raise UserError(f"{OWN_ATTENTIONS}: {word} is not a folder")
        files += sorted(path for path in Path(word, below).glob("*.py") if not path.name.startswith("_"))
    return files
