"""The loop of fairseq-train, which validates and saves after each update."""

import logging
import math
import sys
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

import numpy as np
from fairseq.logging import metrics

from ..errors import UserError
from . import stopping
from .replacing import replaces

logger = logging.getLogger(__name__)


def apply() -> None:
    """The wrappers of the loop, in the modules that may run it; a trainer can also be made without one."""
    for loop in _loops():
        _apply(loop)


def _loops() -> Iterator[ModuleType]:
    """fairseq's module under its own name, and as the program of `python -m`."""
    for name in ("fairseq_cli.train", "__main__", "__mp_main__"):
        if hasattr(module := sys.modules.get(name), "validate_and_save"):
            yield module


def _apply(loop: ModuleType) -> None:
    @replaces(loop, "train")
    def train(original, cfg, trainer, task, epoch_itr):
        if is_finished(cfg, trainer.get_num_updates(), epoch_itr.next_epoch_idx):
            return [None], True
        with stopping.interrupts_noted():
            return original(cfg, trainer, task, epoch_itr)

    @replaces(loop, "validate")
    def validate(original, cfg, *given):
        return [comparable_score(score, cfg.checkpoint) for score in original(cfg, *given)]

    @replaces(loop, "validate_and_save")
    def validate_and_save(original, cfg, trainer, task, epoch_itr, valid_subsets, end_of_epoch):
        given = (cfg, trainer, task, epoch_itr, valid_subsets, end_of_epoch)
        if not stopping.is_agreed(trainer):
            return original(*given)
        result = [None], False
        if end_of_epoch or is_due(cfg, trainer.get_num_updates()):
            result = original(*given)
            unsaved = end_of_epoch and epoch_itr.epoch % cfg.checkpoint.save_interval
            if result[1] or unsaved:
                return result  # the run is over, or stops in the next epoch
        if not end_of_epoch:
            loop.checkpoint_utils.save_checkpoint(cfg.checkpoint, trainer, epoch_itr, result[0][0])
        return stopping.end(trainer)


def comparable_score(score: float | None, cfg: Any) -> float | None:
    """The worst score in place of NaN: after a first NaN, `--patience` takes no other score for better."""
    if score is None or not math.isnan(score):
        return score
    logger.warning(
        "the validation's %s is NaN; it counts as the worst, and checkpoint_best.pt stays as it is",
        cfg.best_checkpoint_metric,
    )
    return -math.inf if cfg.maximize_best_checkpoint_metric else math.inf


def is_finished(cfg: Any, updates: int, next_epoch: int) -> bool:
    """Whether a run has made its last update: resumed in the middle of an epoch, fairseq makes one more."""
    limits = (cfg.optimization.max_update, cfg.optimization.max_epoch)
    last_update, last_epoch = (x or math.inf for x in limits)
    stopped_early = 0 < cfg.checkpoint.patience <= patience_state().get("num_runs", 0)
    return updates >= last_update or next_epoch > last_epoch or stopped_early


def patience_state() -> dict[str, Any]:
    """The counts of `--patience`, which fairseq keeps in a function's attributes and loses on resuming.

    The best score may be a number of NumPy's, which torch 2.6 and later refuse to load.
    """
    found = {key: x for loop in _loops() for key, x in vars(loop.should_stop_early).items()}
    return {key: x.item() if isinstance(x, np.generic) else x for key, x in found.items()}


def resume_patience(state: Mapping[str, Any]) -> None:
    """Begin a run with `patience_state`, or without counts, also after another run of this process."""
    for loop in _loops():
        counts = vars(loop.should_stop_early)
        counts.clear()
        counts.update(state)


def before_first_update(trainer: Any, epoch_itr: Any) -> None:
    """Print one line if a run has made its last update, or find out where validation would break."""
    updates = trainer.get_num_updates()
    if is_finished(trainer.cfg, updates, epoch_itr.next_epoch_idx):
        logger.info("training is finished: the checkpoint has made %d updates; nothing to do", updates)
    else:
        check_metric(trainer)


def check_metric(trainer: Any) -> None:
    """UserError for a `--best-checkpoint-metric` that validation does not log, before hours of training.

    fairseq fails at the first validation, if there is one. The first batch is evaluated to find out, without
    the data loader, whose workers would load the rest.
    """
    cfg, datasets = trainer.cfg, trainer.task.datasets
    metric, subset = cfg.checkpoint.best_checkpoint_metric, cfg.dataset.valid_subset.split(",")[0]
    if metric == "loss" or cfg.dataset.disable_validation or not len(datasets.get(subset, ())):
        return
    dataset, batches = datasets[subset], trainer.get_valid_iterator(subset).frozen_batches
    with metrics.aggregate(new_root=True) as found:
        trainer.valid_step(dataset.collater([dataset[index] for index in batches[0]]))
    logged = found.get_smoothed_values()
    if metric not in logged:
        names = ", ".join(name for name in logged if not name.startswith("_"))
        raise UserError(
            f"--best-checkpoint-metric is {metric}, which validation does not log; choose one of {names}"
        )


def is_due(cfg: Any, updates: int) -> bool:
    """Whether the run's own schedule has it validate, save or end after this update."""
    intervals = (cfg.dataset.validate_interval_updates, cfg.checkpoint.save_interval_updates)
    last = cfg.optimization.max_update or math.inf
    return updates >= last or any(every > 0 and updates % every == 0 for every in intervals)
