"""Tasks that fairseq lacks; importing this registers them."""

from .carried import CarriedLanguageModelingTask
from .lra import LRATask

__all__ = ["CarriedLanguageModelingTask", "LRATask"]
