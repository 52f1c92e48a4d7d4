"""The image sets as arrays: scikit-learn's digits, MNIST's idx files, CIFAR-10's binary version."""

import argparse
import gzip
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

import numpy as np

from lab.data.lra.cifar import CIFAR_SIDE, CIFAR_TEST, CIFAR_TRAIN, grey, read_cifar10_records
from lab.data.lra.tasks import find_source, lra_tasks
from lab.data.published import CORPORA
from lab.errors import UserError
from lab.files import sha256_of

LARGEST_VALID, VALID_SHARE = 5000, 10
DIGITS_SEED, DIGITS_HELD_OUT = 42, 250
MNIST_SIDE = 28
MNIST = CORPORA["mnist"].entry
MNIST_ORIGIN = f"MNIST comes from {MNIST['address']}/"

Part = tuple[np.ndarray, np.ndarray]
"""Images, uint8 `(images, height, width, channels)`, and their classes `(images,)`."""


@dataclass(frozen=True)
class ImageSet:
    """The splits; `levels` of a byte, sha256 of what was read, whether that is the original (None: unknown).

    `unreadable` names the files that were left out.
    """

    splits: dict[str, Part]
    levels: int
    classes: tuple[str, ...]
    sources: dict[str, str]
    verified: bool | None
    unreadable: tuple[str, ...] = ()


def read_digits(options: argparse.Namespace) -> ImageSet:
    """scikit-learn's 1,797 digits of 8 x 8 in 17 levels, shuffled with a fixed seed; nothing is read."""
    if options.source is not None:
        raise UserError("digits come with scikit-learn; leave --from out")
    from sklearn.datasets import load_digits

    digits = load_digits()
    order = np.random.default_rng(DIGITS_SEED).permutation(len(digits.images))
    images, labels = digits.images[order, :, :, None].astype(np.uint8), digits.target[order]
    parts = np.split(np.arange(len(order)), [DIGITS_HELD_OUT, 2 * DIGITS_HELD_OUT])
    named = dict(zip(("test", "valid", "train"), parts, strict=True))
    splits = {split: (images[named[split]], labels[named[split]]) for split in ("train", "valid", "test")}
    return ImageSet(splits, 17, tuple(map(str, range(10))), {}, None)


def read_mnist(options: argparse.Namespace) -> ImageSet:
    """MNIST from a folder with its four idx files, packed or not; the last of train are valid."""
    source, partial = options.source, options.partial
    if source is None:
        raise UserError(f"name the folder with MNIST's four files with --from; {MNIST_ORIGIN}")
    sources, verified, parts = {}, True, []
    for prefix in ("train", "t10k"):
        arrays = []
        for kind, shape in (("images-idx3", (MNIST_SIDE, MNIST_SIDE)), ("labels-idx1", ())):
            stem = f"{prefix}-{kind}-ubyte"
            path = _find(source, stem)
            sources[path.name] = sha256_of(path)
            content = unpacked(path)
            found, known = sha256(content).hexdigest(), MNIST["files"][f"{stem}.gz"]["unpacked_sha256"]
            if found != known:
                verified = False
                if not partial:
                    raise UserError(
                        f"{path} has the sha256 {found} when unpacked; expected {known}; {MNIST_ORIGIN}; "
                        "--partial takes it as it is"
                    )
            arrays.append(read_idx(path, content, shape))
        images, labels = arrays
        if len(images) != len(labels):
            raise UserError(f"{source} has {len(images)} images but {len(labels)} labels of {prefix}")
        if len(labels) and labels.max() > 9:
            raise UserError(
                f"label {labels.max()} of image {int(labels.argmax())} of {prefix} is out of range (0 to 9)"
            )
        parts.append((images[..., None], labels))
    return ImageSet(hold_out(*parts), 256, tuple(map(str, range(10))), sources, verified)


def _find(folder: Path, stem: str) -> Path:
    for name in (f"{stem}.gz", stem):
        if (folder / name).is_file():
            return folder / name
    raise UserError(f"{folder} holds no {stem}.gz; {MNIST_ORIGIN}")


def unpacked(path: Path) -> bytes:
    """The content of a file, packed as .gz or not; UserError for one that is cut off."""
    content = path.read_bytes()
    if path.suffix != ".gz":
        return content
    try:
        return gzip.decompress(content)
    except (OSError, EOFError, zlib.error):
        raise UserError(f"{path} is cut off or no gzip file; {MNIST_ORIGIN}") from None


def read_idx(path: Path, content: bytes, shape: tuple[int, ...]) -> np.ndarray:
    """The items of the `content` of an idx file, uint8 `(items, *shape)`.

    Big-endian: two zero bytes, 8 for unsigned bytes, the number of dimensions, each as 32 bits, the bytes.
    Raises UserError for another file, or one cut off.
    """
    magic, size = bytes([0, 0, 8, 1 + len(shape)]), 4 * (2 + len(shape))
    if content[:4] != magic:
        raise UserError(
            f"{path} begins with {content[:4].hex(' ')}; expected {magic.hex(' ')}; {MNIST_ORIGIN}"
        )
    if len(content) < size:
        raise UserError(f"{path} is cut off: it has {len(content)} bytes; {MNIST_ORIGIN}")
    items, *found = struct.unpack(f">{1 + len(shape)}I", content[4:size])
    if tuple(found) != shape:
        raise UserError(
            f"{path} holds images of {' x '.join(map(str, found))}; expected 28 x 28; {MNIST_ORIGIN}"
        )
    expected = size + items * int(np.prod(shape))
    if len(content) != expected:
        raise UserError(f"{path} has {len(content):,} bytes; expected {expected:,}; {MNIST_ORIGIN}")
    return np.frombuffer(content, np.uint8, offset=size).reshape(items, *shape)


def read_cifar10(options: argparse.Namespace) -> ImageSet:
    """CIFAR-10's binary version, the archive or its folder; the last of train are valid."""
    [task] = lra_tasks("image")
    if options.source is None:
        raise UserError(f"name the archive or its folder with --from; CIFAR-10 comes from {task.origin}")
    found = find_source(task, options.source)
    with found.reading():
        files = read_cifar10_records(found)
    if not found.verified and not options.partial:
        raise UserError(
            f"{found.path} is not the original archive cifar-10-binary.tar.gz (sha256 differs or it is "
            f"unpacked); get it from {task.origin}, or take it as it is with --partial"
        )

    def part(names: list[str]) -> Part:
        records = np.concatenate([files[name] for name in names])
        return interleaved(records[:, 1:]), records[:, 0]

    splits = hold_out(part(CIFAR_TRAIN), part([CIFAR_TEST]))
    return ImageSet(splits, 256, task.classes, found.fingerprints(), found.verified is True)


def hold_out(train: Part, test: Part) -> dict[str, Part]:
    """The splits: valid is the last 5,000 images of train, a tenth of a train of less than 50,000."""
    count = min(LARGEST_VALID, len(train[0]) // VALID_SHARE)
    cut = len(train[0]) - count
    return {
        "train": (train[0][:cut], train[1][:cut]),
        "valid": (train[0][cut:], train[1][cut:]),
        "test": test,
    }


READERS: dict[str, Callable[[argparse.Namespace], ImageSet]] = {
    "digits": read_digits,
    "mnist": read_mnist,
    "cifar10": read_cifar10,
}


def interleaved(planes: np.ndarray) -> np.ndarray:
    """CIFAR-10's bytes `(images, 3,072)`, all red, all green, all blue, to `(images, 32, 32, 3)`."""
    return planes.reshape(-1, 3, CIFAR_SIDE, CIFAR_SIDE).transpose(0, 2, 3, 1)


def as_asked(read: ImageSet, options: argparse.Namespace) -> ImageSet:
    """The set in grey and smaller if the options say so; UserError for grey images and for other sizes."""
    splits = {}
    for split, (images, labels) in read.splits.items():
        if options.grey:
            images = in_grey(images)
        if options.size is not None:
            images = shrunk(images, options.size)
        splits[split] = images, labels
    return replace(read, splits=splits)


def in_grey(images: np.ndarray) -> np.ndarray:
    """Pillow's grey of images of three channels; UserError for others."""
    if images.shape[3] != 3:
        raise UserError("--grey: these images are grey already; leave it out")
    planes = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
    return grey(planes).reshape(*images.shape[:3], 1)


def shrunk(images: np.ndarray, size: int) -> np.ndarray:
    """Means of squares, rounded half up, so that the side is `size`; UserError unless it divides the side."""
    count, height, width, channels = images.shape
    if height != width or height % size:
        raise UserError(f"--size is {size}; it must divide the side of the images, {height} x {width}")
    part = height // size
    sums = images.reshape(count, size, part, size, part, channels).sum((2, 4), dtype=np.uint32)
    return ((sums + part * part // 2) // (part * part)).astype(np.uint8)
