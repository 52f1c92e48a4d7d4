"""Criterions that fairseq lacks; importing this registers them."""

from .chunked import ChunkedCrossEntropy, ChunkedMaskedLm
from .classification import ClassificationCriterion, LRACriterion
from .copy import CopyCriterion
from .pixel_likelihood import PixelLikelihoodCriterion

__all__ = [
    "ChunkedCrossEntropy",
    "ChunkedMaskedLm",
    "ClassificationCriterion",
    "CopyCriterion",
    "LRACriterion",
    "PixelLikelihoodCriterion",
]
