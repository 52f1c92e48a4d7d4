"""Causal linear attention for PyTorch, independent of fairseq."""

from .functional import (
    causal_linear_attention,
    causal_linear_attention_step,
    linear_attention,
)
from .selection import select_backend

__all__ = [
    "causal_linear_attention",
    "causal_linear_attention_step",
    "linear_attention",
    "select_backend",
]
__version__ = "0.1.0"
