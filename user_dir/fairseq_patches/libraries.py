"""Repairs for changes of Python, torch, NumPy and gloo since fairseq was written."""

import argparse
import atexit
import logging
import multiprocessing
import os
import sys
import types
import warnings

import numpy as np
import torch
from fairseq.distributed import utils as distributed


def apply() -> None:
    """All of them."""
    allow_plain_types_in_checkpoints()
    restore_numpy_names()
    fork_data_loaders()
    end_gloo_at_exit()
    silence_hydra()
    silence_data_loaders()
    restore_log_format()


def allow_plain_types_in_checkpoints() -> None:
    """torch 2.6 and later refuse checkpoints with types they do not know; safe loading stays on.

    Every RoBERTa checkpoint holds an `argparse.Namespace`, and what rank 0 sends to the others fairseq's
    marks for tensors. Both only store values, so the safe loader may build them.
    """
    torch.serialization.add_safe_globals([argparse.Namespace, distributed._TensorPlaceholder])


def restore_numpy_names() -> None:
    """NumPy 2 dropped `np.compat` (fairseq: generation, interactive); 1.24 `np.int` (span masking)."""
    if not hasattr(np, "compat"):
        np.compat = types.SimpleNamespace(long=int)
    if "int" not in vars(np):
        np.int = int


def fork_data_loaders() -> None:
    """Python 3.14 no longer forks on Linux: each worker of a data loader would import fairseq again."""
    if sys.version_info >= (3, 14) and sys.platform == "linux":
        if multiprocessing.get_start_method() == "forkserver":  # the default, which a library may have fixed
            multiprocessing.set_start_method("fork", force=True)


def end_gloo_at_exit() -> None:
    """fairseq leaves its process group open; gloo's threads then now and then abort a process that ends.

    ("terminate called without an active exception", seen with torch 2.13.) Only gloo's is closed: closing
    NCCL's could wait for a process that has died.
    """
    atexit.unregister(_end_gloo)
    atexit.register(_end_gloo)


def _end_gloo() -> None:
    group = torch.distributed
    if group.is_initialized() and group.get_backend() == "gloo":
        group.destroy_process_group()


def silence_hydra() -> None:
    """Every command of fairseq prints 24 lines of hydra's warnings about how fairseq calls it."""
    warnings.filterwarnings("ignore", category=UserWarning, module=r"hydra\.")
    warnings.filterwarnings("ignore", message=r"\s*'.*' is validated against ConfigStore schema")


def silence_data_loaders() -> None:
    """fairseq always asks for pinned memory; without a GPU torch warns that there is none."""
    warnings.filterwarnings("ignore", message="'pin_memory' argument is set as true but no accelerator")


def restore_log_format() -> None:
    """A module of fairseq's (wav2vec2_classification, 0.12.3) sets logging to DEBUG when it is imported.

    All commands but fairseq-train import it before they set their own format, which then does nothing.
    """
    root = logging.getLogger()
    of_module = [h for h in root.handlers if getattr(h.formatter, "_fmt", None) == logging.BASIC_FORMAT]
    if (
        root.level == logging.DEBUG
        and of_module
        and any(name.startswith("fairseq_cli.") for name in sys.modules)
    ):
        root.setLevel(os.environ.get("LOGLEVEL", "INFO").upper())
        of_module[0].setFormatter(
            logging.Formatter("%(asctime)s | %(levelname)s | %(name)s | %(message)s", "%Y-%m-%d %H:%M:%S")
        )
