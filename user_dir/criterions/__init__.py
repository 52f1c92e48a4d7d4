"""Criterions that fairseq lacks; importing this registers them."""

from .chunked import ChunkedCrossEntropy, ChunkedMaskedLm
from .copy import CopyCriterion
from .lra import LRACriterion

__all__ = ["ChunkedCrossEntropy", "ChunkedMaskedLm", "CopyCriterion", "LRACriterion"]
