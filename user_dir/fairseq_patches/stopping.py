"""SIGTERM, SIGUSR1 and Ctrl-C in training: all processes agree on the next update to save at, and end there.

Schedulers ask a job to end some time before they kill it; fairseq dies and loses its last updates. The
request of any process travels with the sum of the losses, so that all stop after the same update. A second
Ctrl-C ends at once.
"""

import contextlib
import logging
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any, NoReturn

import torch
from torch.multiprocessing import ProcessExitedException

from conventions import INTERRUPTED, REQUESTS, STOPPED

logger = logging.getLogger(__name__)


class _Request:
    """Whether this process has been asked to stop, whether by Ctrl-C, and whether its forks know."""

    made = False
    interrupted = False
    heard = False


class _Saved:
    """The updates of the checkpoint at which the same command would resume, 0 without one."""

    updates = 0


def listen(trainer: Any) -> None:
    """Note requests from now on; earlier ones end the process, which has nothing to save."""
    trainer.stop_agreed = trainer.interrupt_agreed = 0.0
    if threading.current_thread() is not threading.main_thread():
        return
    for number in REQUESTS:
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, _note)
            if number == signal.SIGTERM and not _Request.heard:
                os.register_at_fork(after_in_child=_heed_parent_only)
                _Request.heard = True


def _note(number: int, frame: Any) -> None:
    _Request.made = True


@contextlib.contextmanager
def interrupts_noted() -> Iterator[None]:
    """Inside the block, the first Ctrl-C is a request; elsewhere it ends the process at once."""
    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGINT) != signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, _note_interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _note_interrupt(number: int, frame: Any) -> None:
    if _Request.interrupted:
        _say(f"interrupted: {resumption()}")
        _end_at_once()
    _Request.made = _Request.interrupted = True
    _say("interrupted: ends after this update; press Ctrl-C again to end at once")


def _end_at_once() -> NoReturn:
    """The data loader's workers end first: one that is sending a batch would print a traceback."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the data loader raises an error when a worker ends
    for worker in multiprocessing.active_children():
        worker.kill()
    os._exit(INTERRUPTED)


def _say(line: str) -> None:
    """Unlike `print`, this may interrupt a `print`."""
    os.write(2, f"{line}\n".encode())


def _heed_parent_only() -> None:
    """In a data loader's worker: a SIGTERM to the whole job must not end it before its parent has saved."""
    parent = os.getppid()
    signal.pthread_sigmask(signal.SIG_BLOCK, (*REQUESTS, signal.SIGINT))

    def wait() -> None:
        while signal.sigwaitinfo(REQUESTS).si_pid != parent:
            pass
        os._exit(0)

    threading.Thread(target=wait, daemon=True).start()


def note_saved(checkpoint: Any, trainer: Any) -> None:
    """Remember where the same command resumes, if it looks for the saved checkpoint."""
    if not (checkpoint.no_save or checkpoint.no_last_checkpoints):
        _Saved.updates = trainer.get_num_updates()


def note_loaded(trainer: Any) -> None:
    """Remember where this run started, which is where the same command would."""
    _Saved.updates = trainer.get_num_updates()


def resumption() -> str:
    """Where the same command would start."""
    if _Saved.updates:
        return f"the same command resumes after update {_Saved.updates}"
    return "nothing is saved; the same command starts at update 1"


def requests() -> tuple[float, float]:
    """The numbers that this process adds to the sums of an update."""
    return float(_Request.made), float(_Request.interrupted)


def agree(trainer: Any, totals: list[float]) -> list[float]:
    """Take the sums of all `requests` from `totals`, and leave fairseq's own."""
    *totals, trainer.stop_agreed, trainer.interrupt_agreed = totals
    return totals


def is_agreed(trainer: Any) -> bool:
    """Whether all processes end after this update."""
    alone = trainer.data_parallel_world_size == 1
    return _Request.made if alone else float(trainer.stop_agreed) > 0


def end(trainer: Any) -> NoReturn:
    """End the process once all have come here: a launcher kills the others as soon as one has ended."""
    alone = trainer.data_parallel_world_size == 1
    interrupted = _Request.interrupted if alone else float(trainer.interrupt_agreed) > 0
    logger.info("stopped as asked after update %d; %s", trainer.get_num_updates(), resumption())
    if not alone:
        torch.distributed.barrier()
    if interrupted and trainer.is_data_parallel_master:
        _say(f"interrupted: {resumption()}")
    sys.exit(INTERRUPTED if interrupted else STOPPED)


@contextlib.contextmanager
def requests_passed_on() -> Iterator[None]:
    """Inside the block, the processes that this one spawns and waits for get its requests."""
    ours = threading.current_thread() is threading.main_thread()
    free = [number for number in REQUESTS if ours and signal.getsignal(number) == signal.SIG_DFL]
    for number in free:
        signal.signal(number, _pass_on)
    try:
        yield
    finally:
        for number in free:
            signal.signal(number, signal.SIG_DFL)


def _pass_on(number: int, frame: Any) -> None:
    spawned = _spawned()
    for child in spawned:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.pid, number)
    if not spawned:
        _end_by(number)


def _spawned() -> list[Any]:
    return [child for child in multiprocessing.active_children() if not child.daemon]


def _end_by(number: int) -> None:
    """End the process by the signal, as without a handler."""
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)


@contextlib.contextmanager
def of_command(trains: bool) -> Iterator[None]:
    """Ctrl-C at any other time of a command ends it in one line; processes it has spawned end first."""
    try:
        yield
    except KeyboardInterrupt:
        spawned = _spawned()
        for child in spawned:
            child.join()
        if not spawned:
            _say(f"interrupted: {resumption()}" if trains else "interrupted")
        sys.exit(INTERRUPTED)
    except ProcessExitedException as error:
        if -error.exit_code in REQUESTS:  # it came before training had begun
            _end_by(-error.exit_code)
        if error.exit_code not in (STOPPED, INTERRUPTED):
            raise
        sys.exit(error.exit_code)
