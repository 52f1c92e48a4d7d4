"""CIFAR-10 (Krizhevsky 2009), the binary version: 1 byte label and 3,072 pixels a record."""

from pathlib import PurePosixPath

import numpy as np

from pipeline.data.lra.tasks import Source
from pipeline.errors import UserError

TRAIN_FILES = [f"data_batch_{number}.bin" for number in range(1, 6)]
TEST_FILE = "test_batch.bin"
PICKLES = {name.removesuffix(".bin") for name in [*TRAIN_FILES, TEST_FILE]}
SIDE = 32
RECORD = 1 + 3 * SIDE * SIDE


def read_records(source: Source) -> dict[str, np.ndarray]:
    """The records of each file, uint8 of shape (images, 3,073)."""
    files = {}
    pickled = False

    def wanted(path: PurePosixPath) -> bool:
        nonlocal pickled
        pickled = pickled or path.name in PICKLES
        return path.name in TRAIN_FILES or path.name == TEST_FILE

    for path, content in source.files(wanted):
        files[path.name] = _records(path.name, content.read())
    if not files and pickled:
        raise UserError(
            f"{source.path} holds the pickled version of CIFAR-10, which is never opened; get the binary "
            "version, cifar-10-binary.tar.gz"
        )
    for name in [*TRAIN_FILES, TEST_FILE]:
        if name not in files:
            raise source.missing(name)
    return files


def _records(name: str, content: bytes) -> np.ndarray:
    if not content or len(content) % RECORD:
        raise UserError(
            f"{name} has {len(content):,} bytes, not a multiple of {RECORD:,}: it is cut off or not of the "
            "binary version of CIFAR-10; get it again"
        )
    records = np.frombuffer(content, dtype=np.uint8).reshape(-1, RECORD)
    if records[:, 0].max() > 9:
        number = int(records[:, 0].argmax())
        raise UserError(
            f"{name}, image {number}, has the label {records[number, 0]}, which is out of range (0 to 9); "
            "get the file again"
        )
    return records


def grey(colours: np.ndarray) -> np.ndarray:
    """Pillow's grey, (19595 R + 38470 G + 7471 B + 32768) >> 16, of all red, green and blue pixels.

    `colours` is uint8 of shape (images, 3 * pixels); the result uint8 of shape (images, pixels).
    """
    red, green, blue = colours.reshape(len(colours), 3, -1).astype(np.uint32).transpose(1, 0, 2)
    return ((19595 * red + 38470 * green + 7471 * blue + 32768) >> 16).astype(np.uint8)


def interleaved(planes: np.ndarray) -> np.ndarray:
    """CIFAR-10's bytes `(images, 3,072)`, all red, all green, all blue, to `(images, 32, 32, 3)`."""
    return planes.reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1)
