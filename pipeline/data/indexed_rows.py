"""Rows of numbers as fairseq's memory-mapped indexed data sets."""

import struct
from array import array
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from pipeline.errors import UserError

if TYPE_CHECKING:
    import torch

MAGIC = b"MMIDIDX\x00\x00"
HEADER = struct.Struct("<9sQBQ")  # magic, version, code of the numbers' type, number of rows


def read_row_lengths(index: Path) -> tuple[array, int]:
    """The length of every row, and the bytes of one number; UserError for a damaged index."""
    from fairseq.data import indexed_dataset

    with index.open("rb") as file:
        header = file.read(HEADER.size)
        if len(header) < HEADER.size or header[:9] != MAGIC:
            raise UserError(f"{index} is no index of a prepared corpus")
        _, _, code, rows = HEADER.unpack(header)
        lengths, starts = file.read(4 * rows), file.read()
    if len(lengths) != 4 * rows or len(starts) != 8 * rows:
        raise UserError(f"{index} is truncated")
    return array("i", lengths), indexed_dataset._code_to_dtype[code]().itemsize


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
        else:
            with suppress(OSError):  # Python 3.13 reports data that a forgotten file could not write
                self._builder._data_file.close()
