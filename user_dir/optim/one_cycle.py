"""The one-cycle schedule of learning rate and momentum (Smith and Topin 2018), linear in both halves."""

from dataclasses import dataclass, field
from typing import List, Optional

from fairseq.dataclass import FairseqDataclass
from fairseq.optim import FairseqOptimizer
from fairseq.optim.lr_scheduler import FairseqLRScheduler, register_lr_scheduler
from omegaconf import II

from ..checks.schedules import only_rate
from ..errors import UserError

# The defaults of torch.optim.lr_scheduler.OneCycleLR, with which the published runs were made.
INITIAL, FINAL = 1 / 25, 1 / 250_000
LOWEST_MOMENTUM, HIGHEST_MOMENTUM = 0.85, 0.95


@dataclass
class OneCycleConfig(FairseqDataclass):
    """Configuration of `one_cycle`."""

    warmup_updates: int = field(
        default=0, metadata={"help": "updates in which the learning rate rises; 2 or more"}
    )
    total_num_update: Optional[int] = field(
        default=None,
        metadata={"help": "length of the cycle in updates; default: --max-update"},
    )
    max_update: int = II("optimization.max_update")
    lr: List[float] = field(default=II("optimization.lr"))


@register_lr_scheduler("one_cycle", dataclass=OneCycleConfig)
class OneCycleSchedule(FairseqLRScheduler):
    """`torch.optim.lr_scheduler.OneCycleLR` with linear annealing, for W updates of warmup and T in all.

    The rate of update u, counted from 0, goes linearly from lr / 25 at 0 to lr at W - 1 and to lr / 250,000
    at T - 1, where it stays; Adam's first beta goes from 0.95 to 0.85 and back.

    Raises:
        UserError: unless 2 <= W < T, for more than one rate, or for an optimiser without betas.
    """

    def __init__(self, cfg: OneCycleConfig, optimizer: FairseqOptimizer) -> None:
        super().__init__(cfg, optimizer)
        self.total = cfg.total_num_update or cfg.max_update
        self.peak = only_rate(cfg.lr, "one_cycle")
        if not 2 <= cfg.warmup_updates < self.total:
            raise UserError(
                f"--warmup-updates is {cfg.warmup_updates} and the last update {self.total}; "
                "one_cycle needs 2 or more, fewer than --max-update or --total-num-update"
            )
        if any("betas" not in group for group in optimizer.param_groups):
            raise UserError("one_cycle changes the first beta of Adam; choose an Adam as the --optimizer")
        self.step_update(0)

    def step(self, epoch: int, val_loss: Optional[float] = None) -> float:
        """Nothing changes between epochs."""
        super().step(epoch, val_loss)
        return self.optimizer.get_lr()

    def step_update(self, num_updates: int) -> float:
        """Set and return the rate of the update after `num_updates`; sets the first beta, too."""
        top, end = self.cfg.warmup_updates - 1, self.total - 1
        if num_updates <= top:
            height = num_updates / top
            lowest = INITIAL
        else:
            height = max(0.0, (end - num_updates) / (end - top))
            lowest = FINAL
        rate = self.peak * (lowest + (1 - lowest) * height)
        momentum = HIGHEST_MOMENTUM + (LOWEST_MOMENTUM - HIGHEST_MOMENTUM) * height
        self.optimizer.set_lr(rate)
        for group in self.optimizer.param_groups:
            group["betas"] = (momentum, group["betas"][1])
        return rate
