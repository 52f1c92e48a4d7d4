"""Tasks that fairseq lacks; importing this registers them."""

from .carried import CarriedLanguageModelingTask
from .copy import CopyTask
from .lra import LRATask

__all__ = ["CarriedLanguageModelingTask", "CopyTask", "LRATask"]
