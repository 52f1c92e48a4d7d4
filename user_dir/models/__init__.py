"""Models and named architectures; importing this registers them with fairseq."""

from . import architectures
from .language_model import LinearAttentionLM

__all__ = ["LinearAttentionLM", "architectures"]
