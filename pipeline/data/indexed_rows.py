"""Rows of numbers as fairseq's memory-mapped indexed data sets."""

from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


class RowWriter:
    """Writes STEM.bin and, when the `with` block ends well, STEM.idx.

    `entries` is the size of the dictionary, which decides the type of the numbers.
    """

    def __init__(self, stem: Path, entries: int) -> None:
        from fairseq.data import indexed_dataset

        self._index = f"{stem}.idx"
        self._builder = indexed_dataset.make_builder(f"{stem}.bin", impl="mmap", vocab_size=entries)
        self.lengths: list[int] = []

    def add(self, row: "torch.Tensor") -> None:
        """Append a row of shape (length,)."""
        self._builder.add_item(row)
        self.lengths.append(len(row))

    def __enter__(self) -> "RowWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._builder.finalize(self._index)
