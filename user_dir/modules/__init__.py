"""The parts of a layer besides attention."""

from .batch_norm import tell_padding
from .feed_forward import GLU, FeedForward, activation
from .lrpe import LRPE
from .norms import GatedRMSNorm, RMSNorm, ScaleNorm, build_norm, choose_kernels
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
    "choose_kernels",
    "rotate_halves",
    "tell_padding",
]
