"""Tasks that fairseq lacks; importing this registers them."""

from .carried import CarriedLanguageModelingTask
from .copy import CopyTask
from .image_classification import ImageClassificationTask
from .lra import LRATask
from .pixels import PixelTask
from .recall import RecallTask

__all__ = [
    "CarriedLanguageModelingTask",
    "CopyTask",
    "ImageClassificationTask",
    "LRATask",
    "PixelTask",
    "RecallTask",
]
