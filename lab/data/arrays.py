"""Rows of fairseq's indexed data sets and NumPy's arrays, written so that a full disk is an OSError.

`np.save` raises one without its number, and a write to a mapped array ends the process by SIGBUS.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from fairseq.data import Dictionary, indexed_dataset
from numpy.lib import format as npy

ROWS_BETWEEN_REPORTS = 200_000


@contextmanager
def row_writer(stem: Path, entries: int) -> Iterator[Callable[[torch.Tensor], None]]:
    """Gives what appends a row of shape (length,) to STEM.bin; when the block ends well, STEM.idx is written.

    `entries` is the size of the dictionary, which decides the type of the numbers.
    """
    builder = indexed_dataset.make_builder(f"{stem}.bin", impl="mmap", vocab_size=entries)
    try:
        yield builder.add_item
    except BaseException:
        with suppress(OSError):  # Python 3.13 reports data that a forgotten file could not write
            builder._data_file.close()
        raise
    builder.finalize(f"{stem}.idx")


def write_rows(stem: Path, rows: Iterable[torch.Tensor], entries: int) -> list[int]:
    """Write all rows; returns their lengths."""
    lengths = []
    with row_writer(stem, entries) as add:
        for row in rows:
            add(row)
            lengths.append(len(row))
            if len(lengths) % ROWS_BETWEEN_REPORTS == 0:
                print(f"  {stem.name}: {len(lengths):,} rows", flush=True)
    return lengths


def numbered(lines: Iterable[str], dictionary: Dictionary) -> Iterator[torch.Tensor]:
    """The words of each line as numbers of the dictionary, `</s>` at the end: int32 of shape (length,).

    What `dictionary.encode_line` gives, which fills a tensor number by number.
    """
    indices, unknown, end = dictionary.indices, dictionary.unk(), dictionary.eos()
    for line in lines:
        numbers = [indices.get(word, unknown) for word in line.split()]
        yield torch.tensor([*numbers, end], dtype=torch.int32)


def save_array(path: Path, array: np.ndarray) -> None:
    """What `np.save` writes."""
    array = np.ascontiguousarray(array)
    with path.open("wb") as file:
        npy.write_array_header_1_0(file, npy.header_data_from_array_1_0(array))
        file.write(array.data)


def begin_bytes(file: BinaryIO, shape: tuple[int, ...]) -> None:
    """Write what a file of uint8 of this shape begins with; the elements follow in C order."""
    npy.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
