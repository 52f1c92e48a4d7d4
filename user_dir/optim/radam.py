"""Rectified Adam (Liu et al. 2019), each tensor's gradient clipped, as Katharopoulos et al. 2020 train."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import List, Optional

import torch
from fairseq.dataclass import FairseqDataclass
from fairseq.optim import FairseqOptimizer, register_optimizer
from omegaconf import II

from ..errors import UserError


@dataclass
class RAdamConfig(FairseqDataclass):
    """Configuration of `radam`."""

    radam_beta1: float = field(default=0.9, metadata={"help": "decay of the gradients' running mean"})
    radam_beta2: float = field(default=0.999, metadata={"help": "decay of the squares' running mean"})
    radam_eps: float = field(default=1e-8, metadata={"help": "added to the denominator"})
    radam_clip_tensor: float = field(
        default=0.0,
        metadata={"help": "largest norm of each parameter tensor's gradient; 0 for no clipping"},
    )
    weight_decay: float = field(default=0.0, metadata={"help": "decay of the weights, apart from the loss"})
    lr: List[float] = field(default=II("optimization.lr"))
    fp16: bool = field(default=II("common.fp16"))
    memory_efficient_fp16: bool = field(default=II("common.memory_efficient_fp16"))
    memory_efficient_bf16: bool = field(default=II("common.memory_efficient_bf16"))
    fp16_no_flatten_grads: bool = field(default=II("common.fp16_no_flatten_grads"))


@register_optimizer("radam", dataclass=RAdamConfig)
class RAdam(FairseqOptimizer):
    """torch's RAdam with decoupled weight decay, behind an optional clipping of each tensor on its own.

    Raises UserError for a negative norm, for memory-efficient precision, which fairseq has for its own
    optimizers, and in fp16 where it would join all gradients in one tensor.
    """

    def __init__(self, cfg: RAdamConfig, params: list) -> None:
        super().__init__(cfg)
        if cfg.radam_clip_tensor < 0:
            raise UserError(f"--radam-clip-tensor is {cfg.radam_clip_tensor}; it must be 0 or more")
        if cfg.memory_efficient_fp16 or cfg.memory_efficient_bf16:
            raise UserError(
                "--optimizer radam lacks a memory-efficient form; use --bf16, or --fp16 with "
                "--fp16-no-flatten-grads"
            )
        if cfg.fp16 and not cfg.fp16_no_flatten_grads:
            raise UserError("--optimizer radam needs each tensor on its own; add --fp16-no-flatten-grads")
        self._optimizer = torch.optim.RAdam(params, decoupled_weight_decay=True, **self.optimizer_config)

    @property
    def optimizer_config(self) -> dict[str, object]:
        """Settings that override those of a checkpoint."""
        lr = self.cfg.lr
        return {
            "lr": lr[0] if isinstance(lr, Collection) else lr,
            "betas": (self.cfg.radam_beta1, self.cfg.radam_beta2),
            "eps": self.cfg.radam_eps,
            "weight_decay": self.cfg.weight_decay,
        }

    def step(
        self, closure: Optional[Callable] = None, scale: float = 1.0, groups: Optional[list] = None
    ) -> None:
        """One update; `scale` is the loss scale still on the gradients."""
        if scale != 1.0:
            self.multiply_grads(1.0 / scale)
        if self.cfg.radam_clip_tensor:
            for parameter in self.params:
                torch.nn.utils.clip_grad_norm_([parameter], self.cfg.radam_clip_tensor)
        super().step(closure, groups=groups)
