"""Repairs of fairseq on current torch, NumPy and Python; each names what breaks and since when."""

import argparse
import sys
import types
from collections.abc import Callable

import numpy as np
import torch


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

    parse = options.parse_args_and_arch
    if getattr(parse, "keeps_cuda", False):
        return

    def parse_args_and_arch(parser, input_args=None, *args, **kwargs):
        parsed = parse(parser, input_args, *args, **kwargs)
        given = sys.argv[1:] if input_args is None else input_args
        results = parsed if isinstance(parsed, tuple) else (parsed,)
        for namespace in results:
            if getattr(namespace, "bf16", False):
                namespace.tpu = "--tpu" in given
        return parsed

    parse_args_and_arch.keeps_cuda = True
    options.parse_args_and_arch = parse_args_and_arch


REPAIRS: tuple[Callable[[], None], ...] = (
    allow_namespace_in_checkpoints,
    restore_numpy_names,
    keep_cuda_with_bf16,
)


def apply() -> None:
    """All repairs; applying them twice changes nothing."""
    for repair in REPAIRS:
        repair()
