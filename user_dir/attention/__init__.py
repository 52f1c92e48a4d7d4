"""Attention mechanisms: one file each, one interface, one registry."""

from . import (  # noqa: F401  (each registers its mechanism)
    bigbird,
    cosformer,
    diag,
    elu,
    flash,
    informer,
    kernelized,
    linformer,
    lln_diag,
    longformer,
    norm,
    nystromformer,
    performer,
    reformer,
    skyformer,
    softmax,
    tnn,
    transformer_ls,
)
from .base import Attention, ParallelAttention, SelfAttention
from .lln import lln_attention
from .parts.moment_matching import fit_moment_matching
from .registry import (
    attention_class,
    attention_names,
    build_attention,
    register_attention,
)

__all__ = [
    "Attention",
    "ParallelAttention",
    "SelfAttention",
    "attention_class",
    "attention_names",
    "build_attention",
    "fit_moment_matching",
    "lln_attention",
    "register_attention",
]
