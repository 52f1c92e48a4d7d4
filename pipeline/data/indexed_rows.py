"""Rows of numbers as fairseq's memory-mapped indexed data sets."""

import struct
from array import array
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from pipeline.errors import UserError

if TYPE_CHECKING:
    import torch
    from fairseq.data import Dictionary

MAGIC = b"MMIDIDX\x00\x00"
HEADER = struct.Struct("<9sQBQ")  # magic, version, code of the numbers' type, number of rows
ROWS_BETWEEN_REPORTS = 200_000


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


def write_rows(stem: Path, rows: "Iterable[torch.Tensor]", entries: int) -> list[int]:
    """Write all rows with a `RowWriter`; returns their lengths."""
    with RowWriter(stem, entries) as writer:
        for number, row in enumerate(rows, 1):
            writer.add(row)
            if number % ROWS_BETWEEN_REPORTS == 0:
                print(f"  {stem.name}: {number:,} rows", flush=True)
    return writer.lengths


def numbered(lines: Iterable[str], dictionary: "Dictionary") -> "Iterator[torch.Tensor]":
    """The words of each line as numbers of the dictionary, `</s>` at the end: int32 of shape (length,).

    What `dictionary.encode_line` gives, which fills a tensor number by number.
    """
    import torch

    indices, unknown, end = dictionary.indices, dictionary.unk(), dictionary.eos()
    for line in lines:
        numbers = [indices.get(word, unknown) for word in line.split()]
        yield torch.tensor([*numbers, end], dtype=torch.int32)
