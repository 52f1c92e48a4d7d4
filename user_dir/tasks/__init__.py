"""Tasks that fairseq lacks; importing this registers them."""

from .lra import LRATask

__all__ = ["LRATask"]
