"""Models and named architectures; importing this registers them with fairseq."""

from . import architectures, peers
from .language_model import LinearAttentionLM
from .roberta import LinearAttentionRoberta

__all__ = ["LinearAttentionLM", "LinearAttentionRoberta", "architectures", "peers"]
