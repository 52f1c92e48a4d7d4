"""Refuses conflicting settings of a training before anything is loaded or written."""

import ast
import logging
import os
import shutil
from argparse import Namespace
from pathlib import Path
from typing import Any

import torch
from fairseq.tasks import TASK_DATACLASS_REGISTRY
from fairseq.utils import split_paths

from ..errors import UserError
from .checkpoints import has_attention
from .same_settings import OURS
from .settings import check_log_file, check_writable
from .tasks import check_criterion_of_task, check_model_of_task, settings_of
from .unsupported import check_packages

logger = logging.getLogger(__name__)

LAST = "checkpoint_last.pt"
RESETS = ("reset_optimizer", "reset_lr_scheduler", "reset_meters", "reset_dataloader")
BREAK_GRAPHS = ("decoder_layerdrop", "encoder_layerdrop", "checkpoint_activations", "offload_activations")
OF_TORCH = ("c10d", "pytorch_ddp")
"""The names of torch's DDP among fairseq's --ddp-backend."""


def check_training(cfg: Any, here: bool = True) -> None:
    """Refuse a training that fairseq would end in a traceback, or only after it has begun.

    Args:
        cfg: fairseq's configuration.
        here: whether this machine will train; another machine is assumed to have GPUs.

    Raises:
        UserError: naming the option.
    """
    if cfg.dataset.batch_size is None and cfg.dataset.max_tokens is None:
        raise UserError("the size of the batch is missing; give --batch-size or --max-tokens")
    if cfg.dataset.update_ordered_indices_seed and not cfg.dataset.update_epoch_batch_itr:
        raise UserError(
            "--update-ordered-indices-seed does nothing without --update-epoch-batch-itr True; add it"
        )
    check_packages(cfg)
    on_the_cpu = cfg.common.cpu or (here and not torch.cuda.is_available())
    check_precision(cfg.common, on_the_cpu)
    check_profile(cfg.common.profile and on_the_cpu)
    check_criterion(cfg)
    check_layer_drop(cfg)
    check_compiled(cfg.criterion, cfg.model, on_the_cpu)
    check_plugin_model(cfg)
    check_start(cfg.checkpoint)
    check_folders(cfg)
    check_pruning(cfg.model)
    if getattr(cfg.task, "_name", None) == "carried_language_modeling":
        check_carried(cfg.task, cfg.model)


def check_carried(task: Any, model: Any) -> None:
    """UserError for a training with carried state that would break off, or lose a layer's state."""
    if len(split_paths(task.data)) > 1:
        raise UserError(f"carried state reads one text, and {task.data} names several folders; name one")
    if getattr(model, "decoder_layerdrop", 0):
        raise UserError("carried state takes every layer in every segment; give no --decoder-layerdrop")
    if has_attention(model, "cosformer") and not model.cosformer_length:
        raise UserError(
            "carried state reads longer texts than a sample, for which cosFormer's M does not reach; give "
            "--cosformer-length, the tokens of a stream or more"
        )


def check_pruning(model: Any) -> None:
    """UserError for a model that is pruned before it is trained: no model fits its checkpoints."""
    for side in ("encoder", "decoder"):
        if keep := getattr(model, f"{side}_layers_to_keep", None):
            raise UserError(
                f"--{side}-layers-to-keep prunes a trained model; train fewer layers, or give it to "
                f"""evaluation with --model-overrides "{{'{side}_layers_to_keep': '{keep}'}}\""""
            )


def check_start(checkpoint: Any) -> None:
    """UserError where the checkpoint to start from is missing: fairseq would start at update 1.

    And for initial weights whose settings exclude each other or cannot be read.
    """
    resets = [name for name in RESETS if getattr(checkpoint, name)]
    if checkpoint.finetune_from_model and (resets or checkpoint.restore_file != LAST):
        other = f"--{resets[0].replace('_', '-')}" if resets else "--restore-file"
        raise UserError(f"--finetune-from-model excludes {other}, which it does not need; leave that out")
    try:
        overrides = ast.literal_eval(checkpoint.optimizer_overrides)
    except (ValueError, SyntaxError):
        overrides = None
    if not isinstance(overrides, dict):
        raise UserError(
            f"--optimizer-overrides is {checkpoint.optimizer_overrides!r}; write settings of the optimizer, "
            "such as \"{'weight_decay': 0.1}\""
        )
    if checkpoint.checkpoint_suffix:
        return
    begun = (Path(checkpoint.save_dir) / LAST).exists()
    named = {
        "--restore-file": None if checkpoint.restore_file == LAST else checkpoint.restore_file,
        "--finetune-from-model": None if begun else checkpoint.finetune_from_model,
    }
    for option, path in named.items():
        if path and not Path(path).exists():
            raise UserError(f"no checkpoint {path}; name another one with {option}, or leave it out")


def check_compiled(criterion: Any, model: Any, on_the_cpu: bool) -> None:
    """UserError for `--compile`, which a CPU leaves out, with options that break up the graph of a model."""
    if on_the_cpu or not getattr(criterion, "compile", False):
        return
    for name in BREAK_GRAPHS:
        if getattr(model, name, None):
            raise UserError(
                f"--compile makes one graph of the model, which --{name.replace('_', '-')} breaks up; leave "
                "one of them out"
            )


def check_plugin_model(cfg: Any) -> None:
    """UserError for options of fairseq that a model of this plugin does not support."""
    if not hasattr(cfg.model, OURS):
        return
    if cfg.distributed_training.ddp_backend == "fully_sharded":
        raise UserError(
            "--ddp-backend fully_sharded takes the weights of a layer apart, which the layers of this plugin "
            "read whole; give another --ddp-backend"
        )
    if getattr(cfg.task, "output_dictionary_size", -1) >= 0:
        raise UserError(
            "--output-dictionary-size gives the outputs fewer words than the inputs, but the models of this "
            "plugin have one dictionary; leave it out"
        )
    tied = getattr(cfg.model, "share_decoder_input_output_embed", False)
    if tied and hasattr(cfg.model, "pixel_head"):
        raise UserError(
            "--share-decoder-input-output-embed ties the outputs to the embeddings of words, which models of "
            "pixels do not have; leave it out"
        )


def check_folders(cfg: Any) -> None:
    """UserError if the first process of a training could not write into the named folders."""
    if cfg.distributed_training.distributed_rank != 0:
        return
    folders = {"--save-dir": cfg.checkpoint.save_dir, "--tensorboard-logdir": cfg.common.tensorboard_logdir}
    for option, folder in folders.items():
        if folder:
            check_writable(option, folder)
    check_log_file(cfg.common.log_file)


def check_precision(common: Any, on_the_cpu: bool) -> None:
    """UserError for precisions that exclude each other, and for fp16 without a GPU."""
    if common.fp16 and common.amp:
        raise UserError("--fp16 and --amp exclude each other; give one of them")
    if on_the_cpu and common.amp:
        raise UserError("--amp needs a GPU; on the CPU take --bf16, or leave it out for float32")
    if on_the_cpu and common.fp16 and not (common.memory_efficient_fp16 or common.fp16_no_flatten_grads):
        raise UserError(
            "--fp16 scales its loss on a GPU; on the CPU take --bf16, leave it out for float32, or add "
            "--fp16-no-flatten-grads"
        )


def check_profile(without_a_gpu: bool) -> None:
    """UserError for `--profile` where there is no GPU."""
    if without_a_gpu:
        raise UserError("--profile is for nsys and needs a GPU; leave it out")


def note_long_warmup(cfg: Any) -> None:
    """Warn of a warm-up that is longer than the run.

    It is not a mistake where a long recipe is tried for a few updates.
    """
    warmup, last = getattr(cfg.lr_scheduler, "warmup_updates", 0), cfg.optimization.max_update
    if last and isinstance(warmup, int) and warmup > last:
        logger.warning(
            "--warmup-updates is %d, more than --max-update %d: the learning rate never reaches --lr",
            warmup,
            last,
        )


def check_processes(cfg: Any) -> None:
    """UserError where fairseq itself would start no process, or fewer than meet, on this machine.

    It starts one for each visible GPU, up to the world size, unless `--distributed-no-spawn` says that each
    is started from outside; without `--distributed-init-method` it finds torchrun and Slurm by their
    environment. With an address, the processes that are missing here can be those of other machines; with
    `--cpu` it still starts one for each GPU here.
    """
    settings, gpus = cfg.distributed_training, torch.cuda.device_count()
    world, on_the_cpu = settings.distributed_world_size, cfg.common.cpu
    if world == 1 or settings.distributed_no_spawn or cfg.common.tpu or (world <= gpus and not on_the_cpu):
        return
    named = settings.distributed_init_method is not None and not on_the_cpu
    if gpus and (named or is_in_torchrun() or _is_in_slurm()):
        return
    unused = " and --cpu uses none" if on_the_cpu and gpus else ""
    raise UserError(
        f"--distributed-world-size is {world}, but fairseq starts a process for each visible GPU, of which "
        f"this machine has {gpus}{unused}; start each process yourself with --distributed-no-spawn, "
        "--distributed-rank and --distributed-init-method tcp://HOST:PORT (on the CPU also --cpu, "
        "--distributed-backend gloo and --ddp-backend legacy_ddp), or take scripts/train_lm.sh and its like "
        "(docs/cluster.md)"
    )


def is_in_torchrun() -> bool:
    """Whether torchrun has started this process, by the test that fairseq makes."""
    return {"MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK"} <= os.environ.keys()


def _is_in_slurm() -> bool:
    """Whether Slurm has started this process, by the test that fairseq makes."""
    named = {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"} & os.environ.keys()
    return bool(named) and shutil.which("scontrol") is not None


def check_criterion(cfg: Any) -> None:
    """UserError for a loss that does not fit the task or the other settings."""
    criterion, task = (getattr(group, "_name", None) for group in (cfg.criterion, cfg.task))
    check_criterion_of_task(criterion, task)
    if criterion == "cross_entropy" and getattr(cfg.model, "pixel_head", "") == "logistic":
        raise UserError(
            "--criterion cross_entropy reads the parameters of --pixel-head logistic as scores; give "
            "--criterion pixel_likelihood"
        )
    settings = cfg.distributed_training
    of_torch = settings.ddp_backend in OF_TORCH
    if of_torch and settings.find_unused_parameters and _has_head_of_its_own(criterion, cfg.model):
        raise UserError(
            f"--criterion {criterion} applies the output matrix outside the model, where "
            f"--find-unused-parameters misses it; give --criterion {criterion.removeprefix('chunked_')} or "
            "--ddp-backend legacy_ddp"
        )
    if criterion != "adaptive_loss":
        return
    if not getattr(cfg.model, "adaptive_softmax_cutoff", None):
        raise UserError(
            "--criterion adaptive_loss needs the limits of its classes of words; add "
            "--adaptive-softmax-cutoff, such as 20000,60000"
        )
    if of_torch:
        raise UserError("--criterion adaptive_loss needs another --ddp-backend; add --ddp-backend legacy_ddp")


def check_layer_drop(cfg: Any) -> None:
    """UserError for layer drop under torch's DDP, which waits for the gradients of each layer."""
    if not _has_ddp_of_torch(cfg) or cfg.distributed_training.find_unused_parameters:
        return
    for side in ("encoder", "decoder"):
        if getattr(cfg.model, f"{side}_layerdrop", 0):
            raise UserError(
                f"--{side}-layerdrop leaves layers without gradients, which --ddp-backend "
                f"{cfg.distributed_training.ddp_backend} waits for; give --ddp-backend legacy_ddp"
            )


def check_pairs(cfg: Any, task: Any) -> None:
    """UserError where layers that run once for each sequence of a pair are computed again under torch's DDP.

    It counts the gradients of a layer twice.
    """
    inputs = getattr(getattr(task, "data", None), "inputs", ())
    if len(inputs) < 2 or not _has_ddp_of_torch(cfg):
        return
    for name in ("checkpoint_activations", "offload_activations"):
        if getattr(cfg.model, name, False):
            raise UserError(
                f"--{name.replace('_', '-')} computes each layer again for both sequences of a pair, which "
                f"--ddp-backend {cfg.distributed_training.ddp_backend} does not allow; give --ddp-backend "
                "legacy_ddp"
            )


def _has_ddp_of_torch(cfg: Any) -> bool:
    """Whether torch's DDP has the model, as in several processes."""
    settings = cfg.distributed_training
    return settings.distributed_world_size > 1 and settings.ddp_backend in OF_TORCH


def _has_head_of_its_own(criterion: str | None, model: Any) -> bool:
    """Whether the criterion applies parameters that the model itself does not."""
    if criterion != "chunked_cross_entropy":
        return criterion == "chunked_masked_lm"
    shared = getattr(model, "share_decoder_input_output_embed", False)
    untied = getattr(model, "no_share_decoder_input_output_embed", not shared)  # fairseq has the other flag
    return untied or getattr(model, "decoder_output_bias", "none") == "learned"


def check_task_of_model(parsed: Namespace) -> None:
    """UserError if a training's task is for other models or criterions, or lacks a size that the model takes.

    Without `--task`, fairseq takes translation.
    """
    arch, task = (getattr(parsed, name, None) for name in ("arch", "task"))
    check_model_of_task(arch, task)
    if arch:
        check_criterion_of_task(getattr(parsed, "criterion", None), task)
    model = settings_of(arch)
    known = TASK_DATACLASS_REGISTRY.get(task)
    if model is None or known is None:
        return
    for name, field in model.__dataclass_fields__.items():
        default = str(field.default)
        setting = default.removeprefix("${task.").removesuffix("}")
        if default != setting and setting not in known.__dataclass_fields__ and not hasattr(parsed, name):
            raise UserError(
                f"--arch {arch} needs the setting {setting} of its task, which --task {task} does not have; "
                "give another --task or --arch"
            )
