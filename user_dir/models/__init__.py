"""Models and named architectures; importing this registers them with fairseq."""

from . import architectures
from .language_model import LinearAttentionLM
from .lra import LRAModel
from .pixels import PixelModel
from .roberta import LinearAttentionRoberta
from .vit import ViT

__all__ = [
    "LRAModel",
    "LinearAttentionLM",
    "LinearAttentionRoberta",
    "PixelModel",
    "ViT",
    "architectures",
]
