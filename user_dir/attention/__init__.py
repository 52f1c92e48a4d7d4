"""Attention mechanisms: one file each, one interface, one registry."""

from . import diag, elu, norm, softmax  # noqa: F401  (each registers its mechanism)
from .base import Attention, ParallelAttention, SelfAttention
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
    "register_attention",
]
