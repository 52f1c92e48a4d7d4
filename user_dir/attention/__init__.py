"""Attention mechanisms: one file each, one interface, one registry."""

from importlib import import_module

from conventions.mechanisms import MECHANISMS

from .base import Attention, ParallelAttention, SelfAttention
from .linear import LinearAttention
from .lln import lln_attention
from .own import load_own
from .parts.moment_matching import fit_moment_matching
from .registry import (
    attention_class,
    attention_names,
    build_attention,
    register_attention,
)

for _one in MECHANISMS.values():  # each registers itself
    import_module(f".{_one.file or _one.name}", __name__)

__all__ = [
    "Attention",
    "LinearAttention",
    "ParallelAttention",
    "SelfAttention",
    "attention_class",
    "attention_names",
    "build_attention",
    "fit_moment_matching",
    "lln_attention",
    "register_attention",
]

load_own()
