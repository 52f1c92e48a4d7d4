"""What a layer is built from besides attention."""

from .batch_norm import tell_padding
from .feed_forward import GLU, FeedForward, activation
from .lrpe import LRPE
from .norms import GatedRMSNorm, RMSNorm, ScaleNorm, build_norm
from .positions import InterleavedPositions, LearnedPositions, SinusoidalPositions
from .rotary import rotate_halves

__all__ = [
    "GLU",
    "LRPE",
    "FeedForward",
    "GatedRMSNorm",
    "InterleavedPositions",
    "LearnedPositions",
    "RMSNorm",
    "ScaleNorm",
    "SinusoidalPositions",
    "activation",
    "build_norm",
    "rotate_halves",
    "tell_padding",
]
