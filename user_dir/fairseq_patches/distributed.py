"""fairseq's processes: their start, and broadcasts from rank 0."""

from contextlib import nullcontext
from typing import Any

import torch
from fairseq.distributed import utils
from omegaconf import OmegaConf

from ..checks.checkpoints import check_one_model
from ..checks.overrides import check_overrides
from ..checks.training import check_processes, check_profile, check_training
from . import stopping
from .diverged import refused_losses
from .replacing import replaces

TRAINING = "fairseq_cli.train"
VALIDATION = "fairseq_cli.validate"


def apply() -> None:
    """The wrappers of the start of a command and of broadcasts."""

    @replaces(torch.cuda.profiler, "profile")
    def profile(begin):
        check_profile(not torch.cuda.is_available())  # fairseq begins it before `call_main`
        return begin()

    @replaces(torch.multiprocessing, "spawn")
    def spawn(start, *args, **kwargs):
        with stopping.requests_passed_on():
            return start(*args, **kwargs)

    @replaces(utils, "call_main")
    def call_main(call, cfg, main, **kwargs):
        trains = program_of(main) == TRAINING
        if trains:
            check_training(cfg)
        validates = program_of(main) == VALIDATION
        if validates:  # of several models fairseq would evaluate the first
            check_one_model("--path", cfg.common_eval.path)
        check_overrides(cfg)
        check_processes(cfg)
        with stopping.of_command(trains), refused_losses() if validates else nullcontext():
            return call(cfg, main, **kwargs)

    @replaces(utils, "broadcast_object")
    def broadcast_object(broadcast, obj, *args, **kwargs):
        return restored_configuration(broadcast(plain_configuration(obj), *args, **kwargs))


def program_of(main: Any) -> str | None:
    """The module of a command's `main`, also with `python -m`."""
    return getattr(main.__globals__.get("__spec__"), "name", None)


def plain_configuration(obj: Any) -> Any:
    """torch 2.6 and later refuse the `DictConfig` in a checkpoint that rank 0 sends: it travels as values."""
    if isinstance(obj, dict) and OmegaConf.is_config(obj.get("cfg")):
        return {**obj, "cfg": OmegaConf.to_container(obj["cfg"])}
    return obj


def restored_configuration(received: Any) -> Any:
    """The inverse of `plain_configuration`."""
    if isinstance(received, dict) and received.get("cfg") is not None:
        received["cfg"] = OmegaConf.create(received["cfg"], flags={"allow_objects": True})
    return received
