"""Criterions that fairseq lacks; importing this registers them."""

from .lra import LRACriterion

__all__ = ["LRACriterion"]
