"""CIFAR-10's binary version (Krizhevsky 2009).

A record is 1 byte label and 3,072 pixels, all red, all green, all blue.
"""

from pathlib import PurePosixPath

import numpy as np

from lab.data.lra.tasks import Source
from lab.errors import UserError

CIFAR_TRAIN = [f"data_batch_{number}.bin" for number in range(1, 6)]
CIFAR_TEST = "test_batch.bin"
CIFAR_PICKLES = {name.removesuffix(".bin") for name in [*CIFAR_TRAIN, CIFAR_TEST]}
CIFAR_SIDE = 32
CIFAR_RECORD = 1 + 3 * CIFAR_SIDE * CIFAR_SIDE


def read_cifar10_records(source: Source) -> dict[str, np.ndarray]:
    """The records of each file, uint8 of shape (images, 3,073)."""
    files = {}
    pickled = False

    def wanted(path: PurePosixPath) -> bool:
        nonlocal pickled
        pickled = pickled or path.name in CIFAR_PICKLES
        return path.name in CIFAR_TRAIN or path.name == CIFAR_TEST

    for path, content in source.files(wanted):
        files[path.name] = _records(path.name, content.read())
    if not files and pickled:
        raise UserError(
            f"{source.path} holds the pickled version of CIFAR-10, which is never opened; get the binary "
            "version, cifar-10-binary.tar.gz"
        )
    for name in [*CIFAR_TRAIN, CIFAR_TEST]:
        if name not in files:
            raise source.missing(name)
    return files


def _records(name: str, content: bytes) -> np.ndarray:
    if not content or len(content) % CIFAR_RECORD:
        raise UserError(
            f"{name} has {len(content):,} bytes, not a multiple of {CIFAR_RECORD:,}: it is cut off or not "
            "of the binary version of CIFAR-10; get it again"
        )
    records = np.frombuffer(content, dtype=np.uint8).reshape(-1, CIFAR_RECORD)
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
