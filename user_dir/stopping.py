"""SIGTERM and SIGUSR1 in training: all processes agree on the next update to save at, and end there."""

import logging
import math
import os
import signal
import sys
import threading
from typing import Any, NoReturn

import torch

from .replacing import replaces

STOPPED = 75
"""Exit code of training that was asked to stop and can be resumed (EX_TEMPFAIL of <sysexits.h>)."""
REQUESTS = (signal.SIGTERM, signal.SIGUSR1)

logger = logging.getLogger(__name__)


class _Request:
    """Whether this process has been asked to stop, and since when it listens."""

    made = False
    heard = False


def stop_when_asked() -> None:
    """Schedulers ask a job to end some time before they kill it; fairseq dies and loses its last updates.

    The request of any process travels with the sum of the losses, so that all stop after the same update.
    """
    from fairseq.trainer import Trainer

    @replaces(Trainer, "__init__")
    def make_trainer(init, self, *args, **kwargs):
        init(self, *args, **kwargs)
        self.stop_agreed = 0.0
        _listen()
        _end_after_updates()

    @replaces(Trainer, "_aggregate_logging_outputs")
    def aggregate_with_requests(aggregate, self, logging_outputs, *stats, ignore=False):
        outputs, totals = aggregate(self, logging_outputs, *stats, float(_Request.made), ignore=ignore)
        *totals, self.stop_agreed = totals
        return outputs, totals


def _listen() -> None:
    """Take note of requests from now on; before, they end the process, which has nothing to save."""
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


def _heed_parent_only() -> None:
    """In a data loader's worker: a SIGTERM to the whole job must not end it before its parent has saved."""
    parent = os.getppid()
    signal.pthread_sigmask(signal.SIG_BLOCK, REQUESTS)

    def wait() -> None:
        while signal.sigwaitinfo(REQUESTS).si_pid != parent:
            pass
        os._exit(0)

    threading.Thread(target=wait, daemon=True).start()


def _end_after_updates() -> None:
    """fairseq's loop validates and saves after each update; where a request has come, it ends there."""
    loop = sys.modules.get("fairseq_cli.train")
    if not hasattr(loop, "validate_and_save"):
        return

    @replaces(loop, "validate_and_save")
    def validate_and_save(original, cfg, trainer, task, epoch_itr, valid_subsets, end_of_epoch):
        given = (cfg, trainer, task, epoch_itr, valid_subsets, end_of_epoch)
        if not _agreed(trainer):
            return original(*given)
        result = [None], False
        if end_of_epoch or _is_due(cfg, trainer.get_num_updates()):
            result = original(*given)
            unsaved = end_of_epoch and epoch_itr.epoch % cfg.checkpoint.save_interval
            if result[1] or unsaved:
                return result  # the run is over, or stops in the next epoch
        if not end_of_epoch:
            loop.checkpoint_utils.save_checkpoint(cfg.checkpoint, trainer, epoch_itr, result[0][0])
        return _end(trainer)


def _agreed(trainer: Any) -> bool:
    alone = trainer.data_parallel_world_size == 1
    return _Request.made if alone else float(trainer.stop_agreed) > 0


def _is_due(cfg: Any, updates: int) -> bool:
    """Whether the run's own schedule has it validate, save or end after this update."""
    intervals = (cfg.dataset.validate_interval_updates, cfg.checkpoint.save_interval_updates)
    last = cfg.optimization.max_update or math.inf
    return updates >= last or any(every > 0 and updates % every == 0 for every in intervals)


def _end(trainer: Any) -> NoReturn:
    """End the process once all have come here: a launcher kills the others as soon as one has ended."""
    logger.info("stopped as asked after update %d; the same command resumes", trainer.get_num_updates())
    if trainer.data_parallel_world_size > 1:
        torch.distributed.barrier()
    sys.exit(STOPPED)
