"""What a layer is built from besides attention."""

from .feed_forward import GLU, FeedForward, activation
from .lrpe import LRPE
from .norms import RMSNorm, build_norm
from .positions import LearnedPositions, SinusoidalPositions

__all__ = [
    "GLU",
    "LRPE",
    "FeedForward",
    "LearnedPositions",
    "RMSNorm",
    "SinusoidalPositions",
    "activation",
    "build_norm",
]
