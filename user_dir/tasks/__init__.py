"""Tasks that fairseq lacks; importing this registers them."""

from .carried import CarriedLanguageModelingTask
from .copy import CopyTask
from .lra import LRATask
from .pixels import PixelTask

__all__ = ["CarriedLanguageModelingTask", "CopyTask", "LRATask", "PixelTask"]
