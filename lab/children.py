"""The processes that a command starts: they end with it, and a request to stop it reaches them.

A request to stop is SIGTERM or SIGUSR1: training processes save their state and end, then the command ends.
"""

import ctypes
import errno
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from types import FrameType
from typing import BinaryIO, NoReturn

from conventions import INTERRUPTED, REQUESTS, STOPPED
from lab.errors import explain, unexpected
from lab.files import ROOT

PARENT = "LINEAR_ATTENTION_PARENT"
PR_SET_PDEATHSIG = 1  # of <linux/prctl.h>
SECONDS_TO_SAVE = 60  # after an interruption

_training: set[subprocess.Popen[bytes]] = set()
_asked: list[int] = []


@contextmanager
def started(
    module: str,
    arguments: Sequence[str],
    output: BinaryIO,
    environment: Mapping[str, str],
    held: Sequence[int] = (),
) -> Iterator[subprocess.Popen[bytes]]:
    """Start `python -m module arguments`; inside the block, requests to stop go to that process.

    It writes to `output`, inherits the descriptors `held`, and gets the variables of `environment` besides
    ours. It ends with this process if it calls `end_with_parent`.
    """
    path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    ours = {"PYTHONPATH": os.pathsep.join(path), "PYTHONSAFEPATH": "1", PARENT: str(os.getpid())}
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        env={**os.environ, **ours, **environment},
        pass_fds=held,
    )
    _training.add(process)
    try:
        if _asked:  # before the process was there
            process.send_signal(_asked[-1])
        yield process
    finally:
        _training.discard(process)


def end_with_parent() -> None:
    """Have the kernel end this process when the one that started it dies, however it dies (Linux)."""
    parent = os.environ.pop(PARENT, "")
    if not parent.isdecimal() or not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):  # it died before the line above
        os.kill(os.getpid(), signal.SIGKILL)


def end_with(error: Exception, code: int = 1, log: Path | None = None) -> NoReturn:
    """End this process with `error: SENTENCE`; exit code ENOSPC if the full disk prevents that, too.

    Where `explain` has no sentence, the traceback goes to `log`, or to stdout without one.
    """
    sentence = explain(error)
    if sentence is None:
        with log.open("a", encoding="utf-8") if log else nullcontext(sys.stdout) as out:
            traceback.print_exc(file=out)
        sentence = unexpected(error)
    try:
        print(f"error: {sentence}", flush=True)
    except OSError:
        os._exit(errno.ENOSPC)
    sys.exit(code)


def end(processes: Iterable[subprocess.Popen[bytes]]) -> None:
    """Ask running processes to end; they may save their state first."""
    running = list(processes)
    for process in running:
        process.terminate()
    deadline = time.monotonic() + SECONDS_TO_SAVE
    for process in running:
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))
    kill(process for process in running if process.returncode is None)


def kill(processes: Iterable[subprocess.Popen[bytes]]) -> None:
    """Kill processes."""
    for process in processes:
        process.kill()
        process.wait()


@contextmanager
def handled() -> Iterator[None]:
    """Pass requests to stop to running trainings; without one, end the command at once."""
    before = {number: signal.signal(number, _stop) for number in REQUESTS}
    try:
        yield
    finally:
        _asked.clear()
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop(number: int, frame: FrameType | None) -> None:
    _asked.append(number)
    if not _training:
        sys.exit(_code())
    for process in list(_training):
        process.send_signal(number)


def _code() -> int:
    return 128 + signal.SIGTERM if _asked[-1] == signal.SIGTERM else STOPPED


def end_if_asked() -> None:
    """End the command if a request to stop has come."""
    if _asked:
        sys.exit(_code())


def was_interrupted(returncode: int) -> bool:
    """Whether a Python process has ended by Ctrl-C.

    It exits with 130, or dies of the signal although it has caught KeyboardInterrupt: `python -m` does so if
    the signal arrives during an import, inside the `exec` of text that makes a dataclass.
    """
    return returncode in (INTERRUPTED, -signal.SIGINT)


def was_stopped(returncode: int) -> bool:
    """Whether a training process ended because it was asked to."""
    return returncode == STOPPED or (bool(_asked) and -returncode in REQUESTS)


@contextmanager
def worker_pool(processes: int, begin: Callable[[], None] | None = None) -> Iterator[ProcessPoolExecutor]:
    """A pool of forked workers, which share the loaded modules; each calls `begin` first.

    If the block fails or is asked to stop, the jobs that have begun end and the others are cancelled.
    """
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(processes, context, _start, (begin,)) as pool:
        try:
            yield pool
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _start(begin: Callable[[], None] | None) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which ends the pool
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if begin is not None:
        begin()


def _end_with_parent() -> None:
    """A killed parent cannot end the pool, whose processes would wait for work for ever."""
    multiprocessing.parent_process().join()
    os._exit(1)
