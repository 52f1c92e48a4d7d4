"""fairseq's Adam in one kernel for all parameters: torch's fused AdamW on the same states."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Optional

import torch
from fairseq.optim import FairseqOptimizer, register_optimizer
from fairseq.optim.adam import Adam, FairseqAdam, FairseqAdamConfig
from torch import Tensor

from causal_linear_attention.chunked import accumulation_dtype

from ..errors import UserError


class FusedStep(Adam):
    """fairseq's `Adam`, whose state it keeps, with another `step`; the results differ in rounding only.

    fairseq adds epsilon to the root of the second moment before its bias is corrected, torch after: torch is
    given `eps / sqrt(1 - beta2^t)`.
    """

    @torch.no_grad()
    def step(self, closure: Optional[Callable] = None) -> Optional[float]:
        """One update."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for (step, device, _), parameters in self._alike(group["params"]).items():
                self._update(group, step, device, parameters)
        return loss

    def _alike(self, parameters: list) -> dict[tuple[int, torch.device, torch.dtype], list]:
        """The parameters with gradients, by number of update, device and dtype; counts their updates."""
        found = defaultdict(list)
        for parameter in parameters:
            if parameter.grad is None:
                continue
            if parameter.grad.is_sparse:
                raise RuntimeError("adamw_fused takes no sparse gradients; choose --optimizer adam")
            state = self.state[parameter]
            wide = accumulation_dtype(parameter.dtype)
            if not state:
                zeros = torch.zeros_like(parameter, dtype=wide)
                state.update(step=0, exp_avg=zeros, exp_avg_sq=zeros.clone())
            for name in ("exp_avg", "exp_avg_sq"):
                state[name] = state[name].to(parameter.device, wide)
            state["step"] += 1
            found[state["step"], parameter.device, wide].append(parameter)
        return found

    def _update(self, group: dict, step: int, device: torch.device, parameters: list) -> None:
        states = [self.state[parameter] for parameter in parameters]
        wide = states[0]["exp_avg"].dtype
        values = [parameter.detach().to(wide) for parameter in parameters]
        beta1, beta2 = group["betas"]
        count = torch.full((), float(step), device=device)
        torch._fused_adamw_(
            values,
            [parameter.grad.to(wide) for parameter in parameters],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [count] * len(values),
            lr=float(group["lr"]),
            beta1=beta1,
            beta2=beta2,
            weight_decay=group["weight_decay"],
            eps=group["eps"] / (1 - beta2**step) ** 0.5,
            amsgrad=False,
            maximize=False,
        )
        for parameter, value in zip(parameters, values, strict=True):
            if parameter.dtype != wide:
                parameter.copy_(value)


@dataclass
class FusedAdamConfig(FairseqAdamConfig):
    """fairseq's options of Adam."""


@register_optimizer("adamw_fused", dataclass=FusedAdamConfig)
class FusedAdam(FairseqAdam):
    """`--optimizer adam` on torch's fused kernel, on the CPU, too; runs of either continue with the other.

    Raises UserError for fairseq's choices among its own Adams.
    """

    def __init__(self, cfg: FusedAdamConfig, params: list[Tensor]) -> None:
        FairseqOptimizer.__init__(self, cfg)
        for flag in ("use_old_adam", "fp16_adam_stats"):
            if getattr(cfg, flag, False):
                name = flag.replace("_", "-")
                raise UserError(f"--{name} is for --optimizer adam; leave it out with adamw_fused")
        self._optimizer = FusedStep(params, **self.optimizer_config)


# fairseq continues a run only with an optimizer of the same name, and the states are the same.
FusedAdam.__name__ = FairseqAdam.__name__
