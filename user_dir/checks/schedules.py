"""Finds schedules of the learning rate at the start that would break after hours of work."""

from collections.abc import Collection, Sequence
from typing import Any

import torch
from fairseq.optim import FairseqOptimizer
from fairseq.optim.lr_scheduler import build_lr_scheduler

from ..errors import UserError

FROM_THE_OPTIMIZER = "pass_through"  # a schedule that the optimiser brings along


class OnlyARate(torch.optim.Optimizer):
    """Holds a learning rate for a schedule to change."""

    def __init__(self) -> None:
        super().__init__([torch.zeros(1)], {"lr": 1.0, "betas": (0.9, 0.999), "weight_decay": 0.0})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As torch's, which loads `torch._dynamo` (a second) to be called."""
        self.param_groups.append({**self.defaults, **param_group})


def only_rate(rates: float | Sequence[float], schedule: str) -> float:
    """The learning rate of a schedule that has one; UserError for one for each epoch."""
    if not isinstance(rates, Collection):
        return rates
    if len(rates) > 1:
        raise UserError(f"{schedule} has one --lr, not {len(rates)}; give one, or --lr-scheduler fixed")
    return rates[0]


def check_schedule(cfg: Any) -> None:
    """Go through the updates at which fairseq's schedules change, on an optimiser without a model.

    Args:
        cfg: fairseq's configuration, of which the groups `lr_scheduler` and `optimization` matter.

    Raises:
        UserError: for a schedule that divides by zero at the end of its warm-up, or cannot be built.
    """
    name = getattr(cfg.lr_scheduler, "_name", None)
    if name in (None, FROM_THE_OPTIMIZER):
        return
    optimizer = FairseqOptimizer(None)
    optimizer._optimizer = OnlyARate()
    warmup, max_update = getattr(cfg.lr_scheduler, "warmup_updates", 0), cfg.optimization.max_update
    try:
        schedule = build_lr_scheduler(cfg.lr_scheduler, optimizer)
        for update in sorted({0, warmup, warmup + 1, max_update}):
            schedule.step_update(update)
    except UserError:
        raise
    except ZeroDivisionError:
        raise UserError(
            f"--lr-scheduler {name} would divide by zero with --warmup-updates {warmup} and --max-update "
            f"{max_update}; change one of its settings"
        ) from None
    except (AssertionError, ValueError, TypeError) as error:
        reason = " ".join(str(error).split()) or "one of its settings is out of range"
        raise UserError(f"--lr-scheduler {name} cannot be built: {reason}") from None
