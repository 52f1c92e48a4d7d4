"""Repairs of fairseq on current torch, NumPy and Python; each names what breaks and since when."""

import argparse
import atexit
import contextlib
import errno
import inspect
import os
import shutil
import sys
import types
from collections.abc import Callable
from typing import BinaryIO

import numpy as np
import torch
from omegaconf import OmegaConf

from .replacing import replaces


def allow_namespace_in_checkpoints() -> None:
    """torch 2.6 and later refuse checkpoints that hold an `argparse.Namespace`, as every RoBERTa one does.

    The type only stores attributes, so the safe loader may build it; safe loading stays on.
    """
    torch.serialization.add_safe_globals([argparse.Namespace])


def restore_numpy_names() -> None:
    """NumPy 2 dropped `np.compat` (fairseq: generation, interactive); 1.24 `np.int` (span masking)."""
    if not hasattr(np, "compat"):
        np.compat = types.SimpleNamespace(long=int)
    if "int" not in vars(np):
        np.int = int


def keep_cuda_with_bf16() -> None:
    """fairseq takes `--bf16` for a request of a TPU and then leaves the GPU unused."""
    from fairseq import options

    @replaces(options, "parse_args_and_arch")
    def parse_args_and_arch(parse, parser, input_args=None, *args, **kwargs):
        parsed = parse(parser, input_args, *args, **kwargs)
        given = sys.argv[1:] if input_args is None else input_args
        results = parsed if isinstance(parsed, tuple) else (parsed,)
        for namespace in results:
            if getattr(namespace, "bf16", False):
                namespace.tpu = "--tpu" in given
        return parsed


def show_options_in_help() -> None:
    """fairseq's `--help` ends before the options of the task, model and criterion on the line are known."""
    from fairseq import options

    @replaces(options, "parse_args_and_arch")
    def parse_args_and_arch(parse, parser, input_args=None, *args, modify_parser=None, **kwargs):
        given = sys.argv[1:] if input_args is None else input_args
        rest = [word for word in given if word not in ("-h", "--help")]
        calls = []

        def modify(parser):  # fairseq calls it before and after it has added the options
            calls.append(parser)
            if modify_parser is not None:
                modify_parser(parser)
            if len(calls) == 2 and len(rest) < len(given):
                parser.print_help()
                parser.exit()

        return parse(parser, rest, *args, modify_parser=modify, **kwargs)


def keep_last_batch() -> None:
    """fairseq 0.12.3 leaves out the last batch unless its size is a multiple of 8 (a default few know).

    Evaluation then misses its longest samples without a word, and a set of fewer than 8 samples is empty.
    """
    from fairseq.data import data_utils

    @replaces(data_utils, "batch_by_size")
    def batch_by_size(original, indices, *args, **kwargs):
        if not isinstance(indices, np.ndarray):
            indices = np.fromiter(indices, dtype=np.int64, count=-1)
        batches = original(indices, *args, **kwargs)
        rest = indices[sum(len(batch) for batch in batches) :]
        return [*batches, rest] if len(rest) else batches


def keep_plain_scores_in_checkpoints() -> None:
    """fairseq stores scores of NumPy's (STS-B's correlation), which torch 2.6 and later refuse to load.

    The best one is in the checkpoint itself, another in the state of the learning rate's scheduler.
    """
    from fairseq import checkpoint_utils
    from fairseq.trainer import Trainer

    @replaces(checkpoint_utils, "save_checkpoint")
    def save_checkpoint(save, cfg, trainer, epoch_itr, val_loss):
        return save(cfg, trainer, epoch_itr, _plain(val_loss))

    @replaces(Trainer, "lr_step")
    def lr_step(step, self, epoch, val_loss=None):
        return step(self, epoch, _plain(val_loss))


def _plain(score: float | None) -> float | None:
    return None if score is None else float(score)


def broadcast_checkpoints_safely() -> None:
    """torch 2.6 and later refuse what rank 0 reads from a checkpoint and sends to the others.

    It holds omegaconf's `DictConfig` and fairseq's marks for tensors. The configuration travels as plain
    values; the mark only stores a number, so the safe loader may build it.
    """
    from fairseq.distributed import utils

    torch.serialization.add_safe_globals([utils._TensorPlaceholder])

    @replaces(utils, "broadcast_object")
    def broadcast_object(broadcast, obj, *args, **kwargs):
        if isinstance(obj, dict) and OmegaConf.is_config(obj.get("cfg")):
            obj = {**obj, "cfg": OmegaConf.to_container(obj["cfg"])}
        received = broadcast(obj, *args, **kwargs)
        if isinstance(received, dict) and received.get("cfg") is not None:
            received["cfg"] = OmegaConf.create(received["cfg"], flags={"allow_objects": True})
        return received


def keep_place_in_epoch() -> None:
    """fairseq counts the batches of one process, so other processes or batches resume at the wrong place.

    Every version of it: half as many processes then repeat batches, twice as many skip them or fail; so do
    smaller and larger batches.
    """
    from fairseq.data.iterators import EpochBatchIterator

    @replaces(EpochBatchIterator, "state_dict")
    def state_with_processes(state_dict, self):
        return {**state_dict(self), "processes": self.num_shards, "batches": len(self.frozen_batches)}

    @replaces(EpochBatchIterator, "load_state_dict")
    def load_scaled(load_state_dict, self, state):
        done = state.get("iterations_in_epoch", 0) * state.get("processes", self.num_shards)
        if before := state.get("batches"):
            done = round(done * len(self.frozen_batches) / before)
        load_state_dict(self, {**state, "iterations_in_epoch": done // self.num_shards})


def keep_batches_when_resuming() -> None:
    """fairseq batches the samples once, in an order drawn with the number of the epoch it starts in.

    Every version of it: a run resumed after its first epoch gets other batches than it would have had, and
    in the rest of that epoch sees some samples twice and others not at all.
    """
    from fairseq.tasks import FairseqTask

    signature = inspect.signature(FairseqTask.get_batch_iterator)

    @replaces(FairseqTask, "get_batch_iterator")
    def get_batch_iterator(original, self, dataset, *args, **kwargs):
        call = signature.bind(self, dataset, *args, **kwargs)
        call.apply_defaults()
        given = call.arguments
        new_each_epoch = given["disable_iterator_cache"] or given["update_epoch_batch_itr"]
        if new_each_epoch or not self.can_reuse_epoch_itr(dataset) or dataset in self.dataset_to_epoch_iter:
            return original(*call.args, **call.kwargs)
        epoch, given["epoch"] = given["epoch"], 1
        iterator = original(*call.args, **call.kwargs)
        dataset.set_epoch(epoch)
        iterator.epoch = max(epoch, 1)
        return iterator


def save_checkpoints_durably() -> None:
    """fairseq (every version) trusts that what it has written is on the disk, and removes the one before.

    After a power cut neither may be there; a full disk keeps its half file; a copy is written in place.
    """
    from fairseq import checkpoint_utils
    from fairseq.file_io import PathManager

    @replaces(checkpoint_utils, "torch_persistent_save")
    def torch_persistent_save(original, obj, filename, async_write=False):
        if async_write or not PathManager.supports_rename(filename):
            return original(obj, filename, async_write)
        _write_durably(filename, lambda file: torch.save(obj, file))

    def copy(src_path, dst_path, overwrite=False):
        with open(src_path, "rb") as source:
            _write_durably(dst_path, lambda file: shutil.copyfileobj(source, file, 1 << 24))
        return True

    PathManager.copy = staticmethod(copy)


def _write_durably(filename: str, write: Callable[[BinaryIO], object]) -> None:
    """Write a whole file or none, and return when it is on the disk; OSError names it."""
    partial = f"{filename}.tmp"
    try:
        with open(partial, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, filename)
        folder = os.open(os.path.dirname(filename) or ".", os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except (OSError, RuntimeError) as error:  # torch makes a RuntimeError of a write that fails
        with contextlib.suppress(OSError):
            os.unlink(partial)
        code = getattr(error, "errno", None) or errno.ENOSPC
        raise OSError(code, os.strerror(code), filename) from error


def keep_overflow_on_the_cpu() -> None:
    """Where an fp16 update overflows, fairseq moves a number to the GPU, which ends training without one."""
    from fairseq.trainer import Trainer

    @replaces(Trainer, "train_step")
    def step_without_gpu(train_step, self, *args, **kwargs):
        if self.cuda:
            return train_step(self, *args, **kwargs)
        move = torch.Tensor.cuda
        torch.Tensor.cuda = lambda tensor, *unused, **options: tensor
        try:
            return train_step(self, *args, **kwargs)
        finally:
            torch.Tensor.cuda = move


def end_gloo_at_exit() -> None:
    """fairseq leaves its process group open; gloo's threads then now and then abort a process that ends.

    ("terminate called without an active exception", seen with torch 2.13.) Only gloo's is closed: closing
    NCCL's could wait for a process that has died.
    """
    atexit.unregister(_end_gloo)
    atexit.register(_end_gloo)


def _end_gloo() -> None:
    distributed = torch.distributed
    if distributed.is_initialized() and distributed.get_backend() == "gloo":
        distributed.destroy_process_group()


REPAIRS: tuple[Callable[[], None], ...] = (
    allow_namespace_in_checkpoints,
    restore_numpy_names,
    keep_cuda_with_bf16,
    show_options_in_help,
    keep_last_batch,
    keep_plain_scores_in_checkpoints,
    broadcast_checkpoints_safely,
    keep_place_in_epoch,
    keep_batches_when_resuming,
    save_checkpoints_durably,
    keep_overflow_on_the_cpu,
    end_gloo_at_exit,
)


def apply() -> None:
    """All repairs; applying them twice changes nothing."""
    for repair in REPAIRS:
        repair()
