"""Optimizers and averages: state that fairseq (every version) leaves out of a checkpoint, and `--amp`.

And running statistics, which it leaves different in each process.
"""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import torch
from fairseq.distributed import utils as workers
from fairseq.models.ema.ema import EMA
from fairseq.optim.amp_optimizer import AMPOptimizer
from fairseq.optim.fp16_optimizer import _FP16OptimizerMixin, _MemoryEfficientFP16OptimizerMixin
from fairseq.optim.lr_scheduler.reduce_lr_on_plateau import ReduceLROnPlateauLRSchedule
from fairseq.trainer import Trainer
from torch.nn.modules.batchnorm import _BatchNorm

from ..checks.checkpoints import not_averaged
from .replacing import replaces

EMA_COUNT = "ema_update_freq_counter"


def apply() -> None:
    """The wrappers of optimizers, averages and schedules."""

    @replaces(_FP16OptimizerMixin, "state_dict")
    def optimizer_state(state, self):
        return {**state(self), "fp32_params": self.fp32_params, "scaler": counts_of(self.scaler)}

    @replaces(_FP16OptimizerMixin, "load_state_dict")
    def load_optimizer_state(load, self, state_dict, optimizer_overrides=None):
        load(self, state_dict, optimizer_overrides)
        restore_master_weights(self, state_dict.get("fp32_params", ()))
        restore_counts(self.scaler, state_dict.get("scaler", {}))

    @replaces(_MemoryEfficientFP16OptimizerMixin, "state_dict")
    def lean_optimizer_state(state, self):
        return {**state(self), "scaler": counts_of(self.scaler)}

    @replaces(_MemoryEfficientFP16OptimizerMixin, "load_state_dict")
    def load_lean_optimizer_state(load, self, state_dict, optimizer_overrides=None):
        load(self, state_dict, optimizer_overrides)
        restore_counts(self.scaler, state_dict.get("scaler", {}))

    @replaces(AMPOptimizer, "state_dict")
    def amp_state(state, self):
        return {**state(self), "scaler": self.scaler.state_dict()}

    @replaces(AMPOptimizer, "load_state_dict")
    def load_amp_state(load, self, state_dict, optimizer_overrides=None):
        load(self, state_dict, optimizer_overrides)
        restore_scale(self.scaler, state_dict.get("scaler", {}))

    @replaces(AMPOptimizer, "__init__")
    def make_scaler(init, self, cfg, params, fp32_optimizer, **kwargs):
        init(self, cfg, params, fp32_optimizer, **kwargs)
        self._grad_scaler = amp_scaler(cfg.common)

    @replaces(AMPOptimizer, "step")
    def step(unused, self):
        # fairseq hands its own wrapper over, for which torch's scaler unscales the gradients a second time;
        # torch's optimizer alone would leave out what the wrapper's step adds, such as clipping
        found = self.scaler._found_inf_per_device(self.optimizer).values()
        if not any(overflow.item() for overflow in found):
            self.fp32_optimizer.step()
        self.scaler.update()

    @replaces(EMA, "__init__")
    def make_ema(init, self, model, config, device=None, skip_keys=None):
        init(self, model, config, device, {*(skip_keys or ()), *not_averaged(model.state_dict())})

    @replaces(EMA, "_step_internal")
    def average(step, self, new_model, updates=None):
        step(self, SimpleNamespace(state_dict=lambda: tied_once(new_model)), updates)

    @replaces(ReduceLROnPlateauLRSchedule, "state_dict")
    def plateau_state(state, self):
        return {**state(self), "num_bad_epochs": self.lr_scheduler.num_bad_epochs}

    @replaces(ReduceLROnPlateauLRSchedule, "load_state_dict")
    def load_plateau_state(load, self, state_dict):
        load(self, state_dict)
        self.lr_scheduler.num_bad_epochs = state_dict.get("num_bad_epochs", 0)


def amp_scaler(common: Any) -> torch.amp.GradScaler:
    """The loss scaler of `--amp`: fairseq takes `--amp-init-scale` for the window, and not as the scale."""
    window = {} if common.amp_scale_window is None else {"growth_interval": common.amp_scale_window}
    return torch.amp.GradScaler("cuda", init_scale=common.amp_init_scale, **window)


def restore_scale(scaler: torch.amp.GradScaler, saved: Mapping[str, Any]) -> None:
    """Put back the scale of `--amp` and its count of updates; the command sets how they change."""
    ours = scaler.state_dict()  # empty without a GPU
    if ours and saved:
        scaler.load_state_dict({**ours, **{name: saved[name] for name in ("scale", "_growth_tracker")}})


def restore_master_weights(optimizer: Any, saved: Any) -> None:
    """Resume with the float32 weights that were saved, if the model's are those in half precision.

    They are not where weights were averaged, whose checkpoint keeps the optimizer of one of them.
    """
    ours, theirs = (
        list(x.values()) if isinstance(x, dict) else list(x) for x in (optimizer.fp32_params, saved)
    )
    half = optimizer.fp16_params[0].dtype
    if [x.shape for x in ours] != [x.shape for x in theirs]:
        return
    theirs = [x.to(own.device) for own, x in zip(ours, theirs, strict=True)]
    if all(torch.equal(own.to(half), x.to(half)) for own, x in zip(ours, theirs, strict=True)):
        for own, x in zip(ours, theirs, strict=True):
            own.data.copy_(x)


def counts_of(scaler: Any) -> dict[str, int]:
    """The counts of fp16's loss scaler until it changes the scale; empty without one."""
    return {key: x for key, x in vars(scaler).items() if key.startswith("_")} if scaler else {}


def restore_counts(scaler: Any, saved: Mapping[str, int]) -> None:
    """Put back the counts that `counts_of` has returned."""
    if scaler is not None:
        vars(scaler).update(saved)


def tied_once(model: torch.nn.Module) -> dict[str, Any]:
    """Its state with tied weights under one of their names: fairseq averages them once for each."""
    once = {name for name, _ in model.named_parameters()}
    others = {name for name, _ in model.named_parameters(remove_duplicate=False)} - once
    return {key: x for key, x in model.state_dict().items() if key not in others}


def make_up_for_plateau(trainer: Trainer, epoch_itr: Any, score: float | None) -> None:
    """The step of reduce_lr_on_plateau after an epoch's last validation: fairseq saves before it."""
    schedule = trainer.lr_scheduler
    if isinstance(schedule, ReduceLROnPlateauLRSchedule) and epoch_itr.iterations_in_epoch == 0:
        schedule.step(epoch_itr.epoch - 1, score)


def load_without_averages(load: Any, trainer: Trainer, *args: Any, **kwargs: Any) -> dict[str, Any] | None:
    """Load a checkpoint, then its averages if it has them.

    fairseq breaks where `--store-ema` begins with a checkpoint that has none. Here they begin with its
    weights, of which `trainer.ema` is a copy.
    """
    settings = trainer.cfg.ema
    stores, settings.store_ema = settings.store_ema, False
    try:
        extra_state = load(trainer, *args, **kwargs)
    finally:
        settings.store_ema = stores
    if stores and extra_state and "ema" in extra_state:
        trainer.ema.restore(extra_state["ema"])
        if settings.ema_fp32:
            trainer.ema.build_fp32_params(extra_state.get("ema_fp32_params"))
        trainer.ema.update_freq_counter = extra_state.get(EMA_COUNT, 0)
    return extra_state


def count_of_averages(trainer: Trainer) -> dict[str, int]:
    """The updates since the last average, with `--ema-update-freq`; empty without averages."""
    return {EMA_COUNT: trainer.ema.update_freq_counter} if trainer.cfg.ema.store_ema else {}


@torch.no_grad()
def share_statistics(model: torch.nn.Module) -> None:
    """Give batch norms the mean of all workers' running statistics; every worker must call it.

    Else each would validate its part of the data with its own, and the checkpoint holds those of one.
    """
    count = workers.get_data_parallel_world_size()
    norms = [part for part in model.modules() if isinstance(part, _BatchNorm) and part.track_running_stats]
    if count == 1 or not norms:
        return
    statistics = [x for norm in norms for x in (norm.running_mean, norm.running_var)]
    totals = torch.cat(statistics)
    workers.all_reduce(totals, workers.get_data_parallel_group())
    for x, total in zip(statistics, totals.split([len(x) for x in statistics]), strict=True):
        x.copy_(total / count)
