"""Arrays in NumPy's files, written so that a full disk is an OSError with its number.

`np.save` raises one without, and a write to a mapped array ends the process by SIGBUS.
"""

from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.lib import format as npy


def save_array(path: Path, array: np.ndarray) -> None:
    """What `np.save` writes."""
    array = np.ascontiguousarray(array)
    with path.open("wb") as file:
        npy.write_array_header_1_0(file, npy.header_data_from_array_1_0(array))
        file.write(array.data)


def begin_bytes(file: BinaryIO, shape: tuple[int, ...]) -> None:
    """Write what a file of uint8 of this shape begins with; the elements follow in C order."""
    npy.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
