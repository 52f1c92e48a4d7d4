"""Encoders for Long Range Arena, and the benchmark's two presets."""

from . import presets
from .model import LRAModel

__all__ = ["LRAModel", "presets"]
