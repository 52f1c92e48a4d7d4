"""Linear warmup and a cosine, as the state-space pipeline of Long Range Arena schedules."""

import math
from dataclasses import dataclass, field
from typing import List, Optional

from fairseq.dataclass import FairseqDataclass
from fairseq.optim import FairseqOptimizer
from fairseq.optim.lr_scheduler import FairseqLRScheduler, register_lr_scheduler
from omegaconf import II

from ..checks.schedules import only_rate
from ..errors import UserError


@dataclass
class CosineWarmupConfig(FairseqDataclass):
    """Configuration of `cosine_warmup`."""

    warmup_updates: int = field(default=0, metadata={"help": "updates in which the rate rises from 0"})
    total_num_update: Optional[int] = field(
        default=None,
        metadata={"help": "update at which the rate reaches 0; default: --max-update"},
    )
    max_update: int = II("optimization.max_update")
    lr: List[float] = field(default=II("optimization.lr"))


@register_lr_scheduler("cosine_warmup", dataclass=CosineWarmupConfig)
class CosineWarmupSchedule(FairseqLRScheduler):
    """`lr u / W` up to update W, then `lr (1 + cos(pi (u - W) / (T - W))) / 2`, u counted from 0.

    That of transformers' `get_cosine_schedule_with_warmup`: beyond T it rises again, where fairseq's
    `cosine` starts over.

    Raises:
        UserError: unless 0 <= W < T, or for more than one rate.
    """

    def __init__(self, cfg: CosineWarmupConfig, optimizer: FairseqOptimizer) -> None:
        super().__init__(cfg, optimizer)
        self.total = cfg.total_num_update or cfg.max_update
        self.peak = only_rate(cfg.lr, "cosine_warmup")
        if not 0 <= cfg.warmup_updates < self.total:
            raise UserError(
                f"--warmup-updates is {cfg.warmup_updates} and the last update {self.total}; "
                "cosine_warmup needs fewer than --max-update or --total-num-update"
            )
        self.step_update(0)

    def step(self, epoch: int, val_loss: Optional[float] = None) -> float:
        """Nothing changes between epochs."""
        super().step(epoch, val_loss)
        return self.optimizer.get_lr()

    def step_update(self, num_updates: int) -> float:
        """Set and return the rate of the update after `num_updates`."""
        warmup, total = self.cfg.warmup_updates, self.total
        if num_updates < warmup:
            share = num_updates / warmup
        else:
            share = (1 + math.cos(math.pi * (num_updates - warmup) / (total - warmup))) / 2
        self.optimizer.set_lr(self.peak * share)
        return self.peak * share
