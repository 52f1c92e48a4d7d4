"""Adam behind clipped gradient values, as Skyformer's code for Long Range Arena trains."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Optional

import torch
from fairseq.optim import register_optimizer
from fairseq.optim.adam import FairseqAdam, FairseqAdamConfig

from ..errors import UserError


@dataclass
class ValueClippedAdamConfig(FairseqAdamConfig):
    """fairseq's Adam and one option more."""

    clip_value: float = field(
        default=1.0, metadata={"help": "largest absolute value of a gradient's entries; larger ones are cut"}
    )


@register_optimizer("adam_value_clip", dataclass=ValueClippedAdamConfig)
class ValueClippedAdam(FairseqAdam):
    """fairseq's AdamW on `clamp(gradient, -c, c)`, c the `clip_value`; gradients are unscaled before.

    Raises UserError for a `clip_value` that is not positive.
    """

    def __init__(self, cfg: ValueClippedAdamConfig, params: list) -> None:
        if cfg.clip_value <= 0:
            raise UserError(f"--clip-value is {cfg.clip_value}; it must be positive")
        super().__init__(cfg, params)

    @property
    def supports_step_with_scale(self) -> bool:
        """No: values are clipped when the loss scale is off the gradients already."""
        return False

    def step(
        self, closure: Optional[Callable] = None, scale: float = 1.0, groups: Optional[list] = None
    ) -> None:
        """One update."""
        if scale != 1.0:
            self.multiply_grads(1.0 / scale)
        torch.nn.utils.clip_grad_value_(self.params, self.cfg.clip_value)
        super().step(closure, groups=groups)
