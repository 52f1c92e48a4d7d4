"""Criterions that fairseq lacks; importing this registers them."""

from .chunked import ChunkedCrossEntropy, ChunkedMaskedLm
from .copy import CopyCriterion
from .lra import LRACriterion
from .pixel_likelihood import PixelLikelihoodCriterion

__all__ = [
    "ChunkedCrossEntropy",
    "ChunkedMaskedLm",
    "CopyCriterion",
    "LRACriterion",
    "PixelLikelihoodCriterion",
]
