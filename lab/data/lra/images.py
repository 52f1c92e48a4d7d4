"""Image (CIFAR-10), Pathfinder and Path-X from their files.

Pathfinder is published as imgs/B/sample_I.png, with labels in metadata/B.npy, text files in spite of their
name: folder, file, number, label (the fourth field) and the parameters of the generator. The benchmark is
the hard set, curv_contour_length_14.
"""

import io
from collections.abc import Iterator
from functools import partial
from pathlib import Path, PurePosixPath

import numpy as np
from PIL import Image, UnidentifiedImageError

from lab.data.lra.tasks import TaskFiles
from lab.data.lra.writing import SplitRecord, write_pixels
from lab.errors import UserError

# CIFAR-10's binary version (Krizhevsky 2009).
#
# A record is 1 byte label and 3,072 pixels, all red, all green, all blue.

CIFAR_TRAIN = [f"data_batch_{number}.bin" for number in range(1, 6)]
CIFAR_TEST = "test_batch.bin"
CIFAR_PICKLES = {name.removesuffix(".bin") for name in [*CIFAR_TRAIN, CIFAR_TEST]}
CIFAR_SIDE = 32
CIFAR_RECORD = 1 + 3 * CIFAR_SIDE * CIFAR_SIDE


def read_cifar10_records(source: TaskFiles) -> dict[str, np.ndarray]:
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
            f"{name} has {len(content):,} bytes, not a multiple of {CIFAR_RECORD:,}: it is truncated or not "
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


VALID_SHARE = 10
"""One in so many training images of CIFAR-10 is held out, as published."""

HARD_SET = "curv_contour_length_14"
LABEL_FIELD = 3
UNSORTED = "unsorted.pixels"


def write_image(source: TaskFiles, folder: Path, seed: int) -> dict[str, SplitRecord]:
    """Write the splits in grey; valid is the last tenth of a permutation of train by `seed`.

    UserError for the pickled version, a missing or cut file, too few images, and a label out of range.
    """
    files = read_cifar10_records(source)
    train = np.concatenate([files[name] for name in CIFAR_TRAIN])
    train = train[np.random.default_rng(seed).permutation(len(train))]
    valid = len(train) // VALID_SHARE
    if not valid:
        raise UserError(f"{source.path} holds {len(train)} training images; give {VALID_SHARE} or more")
    splits = {"train": train[:-valid], "valid": train[-valid:], "test": files[CIFAR_TEST]}
    written = {}
    for split, records in splits.items():
        images = zip(records[:, 0], grey(records[:, 1:]), strict=True)
        written[split] = write_pixels(folder, split, len(records), images, source.task.length)
    return written


def is_of_pathfinder(side: int, path: PurePosixPath) -> bool:
    """Whether this is the path of an image of side x side pixels, or of metadata, in the hard set."""
    parts = path.parts
    if path.suffix == ".npy":
        return parts[-4:-1] == (f"pathfinder{side}", HARD_SET, "metadata")
    return path.suffix == ".png" and parts[-5:-2] == (f"pathfinder{side}", HARD_SET, "imgs")


def write_pathfinder(
    source: TaskFiles, folder: Path, seed: int, skip_empty: bool
) -> tuple[dict[str, SplitRecord], int]:
    """Write the splits, 80, 10 and 10 % of a permutation by `seed` of the images sorted by (B, line).

    Returns what was written, and how many zero-byte images were skipped. UserError for metadata that is
    no text, a label out of range, and an image that is missing, empty (unless `skip_empty`) or damaged.
    """
    reader = _Reader(source)
    with (folder / UNSORTED).open("wb") as output:
        for image in reader.images():
            output.write(image.tobytes())
    found, empty = reader.sorted_images()
    if empty and not skip_empty:
        raise UserError(
            f"{source.path}: the image {empty[0]} is empty (zero bytes); get it again, or leave such images "
            "out with --skip-empty-images"
        )
    for name in empty:
        print(f"Skipped {name}: it is empty (zero bytes).", flush=True)
    pixels = np.memmap(folder / UNSORTED, np.uint8, "r", shape=(len(reader.rows), source.task.length))
    order = np.random.default_rng(seed).permutation(len(found))
    records = {}
    start = 0
    for split, size in source.task.split_sizes(len(found)).items():
        chosen = (found[number] for number in order[start : start + size])
        start += size
        images = ((label, pixels[row]) for row, label in chosen)
        records[split] = write_pixels(folder, split, size, images, source.task.length)
    del pixels
    (folder / UNSORTED).unlink()
    return records, len(empty)


class _Reader:
    """Reads images and metadata in whatever order they come."""

    def __init__(self, source: TaskFiles) -> None:
        self.source = source
        self.side = source.task.side
        self.rows: dict[tuple[str, str], int] = {}
        """Batch and file name of each image, and which of those read it was."""
        self.metadata: dict[str, bytes] = {}
        self.empty: set[tuple[str, str]] = set()
        self._root: PurePosixPath | None = None

    def images(self) -> Iterator[np.ndarray]:
        """Each image as uint8 of shape (side, side); metadata met on the way is kept."""
        for path, content in self.source.files(partial(is_of_pathfinder, self.side)):
            self._check_root(path)
            if path.parts[-2] == "metadata":
                self.metadata[path.stem] = content.read()
                continue
            key = (path.parts[-2], path.name)
            data = content.read()
            if data:
                self.rows[key] = len(self.rows)
                if len(self.rows) % 20_000 == 0:
                    print(f"  {len(self.rows):,} images", flush=True)
                yield self._decode(path, data)
            else:
                self.empty.add(key)

    def _check_root(self, path: PurePosixPath) -> None:
        """The published archive has two folders pathfinder128, of different images."""
        root = path.parents[1 if path.parts[-2] == "metadata" else 2]
        if self._root not in (None, root):
            raise UserError(
                f"{self.source.path} holds two sets, {self._root} and {root}; name the folder of one with "
                "--from"
            )
        self._root = root

    def _decode(self, path: PurePosixPath, data: bytes) -> np.ndarray:
        try:
            with Image.open(io.BytesIO(data), formats=["PNG"]) as image:
                mode, pixels = image.mode, np.asarray(image)
        except (UnidentifiedImageError, OSError, ValueError, SyntaxError):
            raise UserError(f"{path} is not a PNG image, or is damaged; get it again") from None
        if mode != "L" or pixels.shape != (self.side, self.side):
            raise UserError(
                f"{path} is not an image of {self.side} x {self.side} grey pixels; it belongs to another set"
            )
        return pixels

    def sorted_images(self) -> tuple[list[tuple[int, int]], list[str]]:
        """Row and label of each image in the order of (B, line), and the names of the empty ones."""
        if not self.metadata:
            raise self.source.missing(f"pathfinder{self.side}/{HARD_SET}/metadata/*.npy")
        for batch, name in sorted({*self.rows, *self.empty}):
            if not self.metadata.get(batch):
                raise self.source.missing(f"metadata/{batch}.npy with lines, such as for imgs/{batch}/{name}")
        found, empty = [], []
        for batch in sorted(self.metadata, key=_batch_number):
            for name, label in self._labels(batch):
                if (batch, name) in self.empty:
                    empty.append(f"imgs/{batch}/{name}")
                elif (batch, name) in self.rows:
                    found.append((self.rows[batch, name], label))
                else:
                    raise self.source.missing(f"imgs/{batch}/{name}, which metadata/{batch}.npy lists")
        if len(found) < 10:
            raise UserError(f"{self.source.path} holds {len(found)} images; three splits need at least 10")
        return found, empty

    def _labels(self, batch: str) -> Iterator[tuple[str, int]]:
        """File name and label of each line of metadata/B.npy."""
        name = f"metadata/{batch}.npy"
        try:
            text = self.metadata[batch].decode("ascii")
        except UnicodeDecodeError:
            text = "\0"
        if any(not (char.isprintable() or char.isspace()) for char in text):
            raise UserError(
                f"{self.source.path}: {name} is not text; the published file is, in spite of its name: "
                "folder, file, number, label and parameters on each line"
            )
        for number, line in enumerate(text.splitlines(), 1):
            fields = line.split()
            if len(fields) <= LABEL_FIELD:
                raise UserError(f"{name}, line {number}, has {len(fields)} fields; the label is the fourth")
            label = fields[LABEL_FIELD]
            if label not in ("0", "1"):
                raise UserError(f"{name}, line {number}, has the label {label}, out of range (0 or 1)")
            yield fields[1], int(label)


def _batch_number(batch: str) -> tuple[int, str]:
    return (int(batch), batch) if batch.isdigit() else (1 << 62, batch)
