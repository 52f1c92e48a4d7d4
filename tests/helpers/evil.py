"""A checkpoint that would run code."""

from pathlib import Path


class Evil:
    """A pickle that leaves a trace if anything in it is run."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self):
        return Path.touch, (self.trace,)
