"""Images for --task pixels and image_classification: arrays mapped from the disk, and a JSON."""

import gzip
import io
import re
import struct
import tempfile
import zipfile
import zlib
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from pathlib import Path

import numpy as np
from PIL import Image
from tqdm import tqdm

from lab.data.lra.images import CIFAR_SIDE, CIFAR_TEST, CIFAR_TRAIN, grey, read_cifar10_records
from lab.data.lra.tasks import find_source, lra_tasks
from lab.data.preparation import (
    check_accepted,
    check_files,
    check_prepared_with,
    prepare_once,
    save_array,
    write_manifest,
)
from lab.data.published import CORPORA
from lab.errors import UserError
from lab.files import sha256_of
from lab.provenance import usable_cores

# The image sets as arrays: scikit-learn's digits, MNIST's idx files, CIFAR-10's binary version.

LARGEST_VALID, VALID_SHARE = 5000, 10
DIGITS_SEED, DIGITS_HELD_OUT = 42, 250
MNIST_SIDE = 28
MNIST = CORPORA["mnist"].entry
MNIST_ORIGIN = f"MNIST comes from {MNIST['address']}/"

Part = tuple[np.ndarray, np.ndarray]
"""Images, uint8 `(images, height, width, channels)`, and their classes `(images,)`."""


@dataclass(frozen=True)
class ImageSet:
    """The splits; `levels` of a byte, sha256 of the input, whether it is the original (None: unknown).

    `unreadable` names the files that were left out.
    """

    splits: dict[str, Part]
    levels: int
    classes: tuple[str, ...]
    sources: dict[str, str]
    verified: bool | None
    unreadable: tuple[str, ...] = ()


def read_digits(options: Namespace) -> ImageSet:
    """scikit-learn's 1,797 digits of 8 x 8 in 17 levels, shuffled with a fixed seed; no file is read."""
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


def read_mnist(options: Namespace) -> ImageSet:
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
    """The content of a file, packed as .gz or not; UserError if it is truncated."""
    content = path.read_bytes()
    if path.suffix != ".gz":
        return content
    try:
        return gzip.decompress(content)
    except (OSError, EOFError, zlib.error):
        raise UserError(f"{path} is truncated or not a gzip file; {MNIST_ORIGIN}") from None


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
        raise UserError(f"{path} is truncated: it has {len(content)} bytes; {MNIST_ORIGIN}")
    items, *found = struct.unpack(f">{1 + len(shape)}I", content[4:size])
    if tuple(found) != shape:
        raise UserError(
            f"{path} holds images of {' x '.join(map(str, found))}; expected 28 x 28; {MNIST_ORIGIN}"
        )
    expected = size + items * int(np.prod(shape))
    if len(content) != expected:
        raise UserError(f"{path} has {len(content):,} bytes; expected {expected:,}; {MNIST_ORIGIN}")
    return np.frombuffer(content, np.uint8, offset=size).reshape(items, *shape)


def read_cifar10(options: Namespace) -> ImageSet:
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


READERS: dict[str, Callable[[Namespace], ImageSet]] = {
    "digits": read_digits,
    "mnist": read_mnist,
    "cifar10": read_cifar10,
}


def interleaved(planes: np.ndarray) -> np.ndarray:
    """CIFAR-10's bytes `(images, 3,072)`, all red, all green, all blue, to `(images, 32, 32, 3)`."""
    return planes.reshape(-1, 3, CIFAR_SIDE, CIFAR_SIDE).transpose(0, 2, 3, 1)


def as_asked(read: ImageSet, options: Namespace) -> ImageSet:
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


# Dogs vs Cats (Elson et al. 2007): photographs as Kaggle or Microsoft publish them, decoded to one size.

CLASSES = ("cat", "dog")
EACH = 12_500  # photographs of a class
PET_FILE = re.compile(r"(?:^|/)(cat|dog)[./](\d+)\.jpg$", re.IGNORECASE)
SIDE = 224
MARGIN = 8 / 7  # the short side of an evaluation image before its centre is cut out, over that side
HELD_OUT, SEED = 0.2, 42
MOST_UNREADABLE = 0.1
AT_ONCE = 256  # photographs in memory
SHOWN = 5
[PUBLISHED] = CORPORA["dogs-vs-cats"].files.items()
ORIGIN = f"{PUBLISHED[0]} comes from {PUBLISHED[1].url}, train.zip from Kaggle's competition Dogs vs Cats"


@dataclass(frozen=True)
class Photograph:
    """A file of the set; `label` is 0 for a cat, 1 for a dog."""

    name: str
    label: int
    number: int
    content: Callable[[], bytes]


def read_dogs_vs_cats(options: Namespace, scratch: Path) -> ImageSet:
    """Two splits: train, and a fifth of each class as valid, which also serves as test.

    Training images are resized to a square; of the others the short side is resized to 8/7 of its side, and
    the centre cut out. The arrays are kept in the folder `scratch` until they are written.
    """
    if options.source is None:
        raise UserError(f"name the zip file or its unpacked folder with --from; {ORIGIN}")
    found = photographs(options.source)
    verified, sources = check_original(options, found)
    side = options.size or SIDE
    unreadable: list[str] = []
    splits: dict[str, Part] = {}
    for split, members in divide(found).items():
        decode = partial(decoded, side=side, grey=options.grey, whole=split == "train")
        splits[split], bad = decode_all(members, decode, scratch / split)
        unreadable += bad
    if len(unreadable) > MOST_UNREADABLE * len(found):
        raise UserError(
            f"{len(unreadable):,} of {len(found):,} images in {options.source} cannot be read, such as "
            f"{unreadable[0]}; get them again: {ORIGIN}"
        )
    if unreadable:
        shown = ", ".join(unreadable[:SHOWN]) + (", ..." if len(unreadable) > SHOWN else "")
        print(f"{len(unreadable):,} images cannot be read and are left out: {shown}", flush=True)
    return ImageSet(splits, 256, CLASSES, sources, verified, tuple(unreadable))


def photographs(source: Path) -> list[Photograph]:
    """The photographs of a folder or a zip file, by class and number.

    Raises UserError for another file, a class without an image, or an image that is there twice.
    """
    found: dict[tuple[int, int], Photograph] = {}
    for name, content in _files(source):
        if match := PET_FILE.search(name):
            label, number = CLASSES.index(match[1].lower()), int(match[2])
            if (label, number) in found:
                raise UserError(
                    f"{source} holds {CLASSES[label]} {number} twice, as {found[label, number].name} and "
                    f"{name}; name the folder of one of them"
                )
            found[label, number] = Photograph(name, label, number, content)
    for label, name in enumerate(CLASSES):
        if not any(key[0] == label for key in found):
            raise UserError(f"{source} holds no image of a {name}, such as {name}.0.jpg; {ORIGIN}")
    return [found[key] for key in sorted(found)]


def _files(source: Path) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """Names below `source`, each with its reader."""
    if source.is_dir():
        for path in sorted(source.rglob("*.jpg")):
            yield path.relative_to(source).as_posix(), path.read_bytes
        return
    try:
        archive = zipfile.ZipFile(source)
    except (zipfile.BadZipFile, OSError):
        raise UserError(f"{source} is not a zip file, or is truncated; {ORIGIN}") from None
    for name in archive.namelist():
        yield name, partial(archive.read, name)


def check_original(options: Namespace, found: Sequence[Photograph]) -> tuple[bool | None, dict[str, str]]:
    """Whether these are the original photographs, None if unknown; and the sha256 of a zip file.

    Raises UserError if they are not, unless the options take others.
    """
    source = options.source
    sources = {source.name: sha256_of(source)} if source.is_file() else {}
    if PUBLISHED[1].sha256 in sources.values():
        return True, sources
    complete = [(photograph.label, photograph.number) for photograph in found] == [
        (label, number) for label in range(len(CLASSES)) for number in range(EACH)
    ]
    if complete and source.name != PUBLISHED[0]:
        return None, sources
    if not options.partial:
        raise UserError(
            f"{source} is not the original set: expected {EACH:,} images of each class, or {PUBLISHED[0]} "
            f"with its sha256, and found {len(found):,} images; {ORIGIN}; --partial takes it as it is"
        )
    return False, sources


def divide(found: Sequence[Photograph]) -> dict[str, list[Photograph]]:
    """train and valid, a fifth of each class by a fixed seed; UserError if a class has too few for that."""
    generator, held_out = np.random.default_rng(SEED), set()
    for label, name in enumerate(CLASSES):
        own = [place for place, photograph in enumerate(found) if photograph.label == label]
        count = int(HELD_OUT * len(own))
        if not count:
            raise UserError(f"{len(own)} images of a {name} are too few to hold a fifth of them out")
        held_out.update(generator.permutation(own)[:count].tolist())
    return {
        "train": [photograph for place, photograph in enumerate(found) if place not in held_out],
        "valid": [photograph for place, photograph in enumerate(found) if place in held_out],
    }


def decode_all(
    members: Sequence[Photograph], decode: Callable[[Photograph], np.ndarray | None], path: Path
) -> tuple[Part, list[str]]:
    """The readable images in an array mapped from `path`, their classes, and the unreadable files' names."""
    shape, labels, bad = (1, 1, 3), [], []
    with (
        path.open("wb") as file,
        ThreadPoolExecutor(usable_cores()) as threads,
        tqdm(total=len(members), disable=None) as bar,
    ):
        for start in range(0, len(members), AT_ONCE):
            some = members[start : start + AT_ONCE]
            for photograph, image in zip(some, threads.map(decode, some), strict=True):
                if image is None:
                    bad.append(photograph.name)
                    continue
                shape = image.shape
                file.write(image.tobytes())
                labels.append(photograph.label)
            bar.update(len(some))
    whole = (len(labels), *shape)
    images = np.memmap(path, np.uint8, "r", shape=whole) if labels else np.empty(whole, np.uint8)
    return (images, np.array(labels, np.int64)), bad


def decoded(photograph: Photograph, side: int, grey: bool, whole: bool) -> np.ndarray | None:
    """An image as uint8 `(side, side, channels)`, None if it cannot be read.

    `whole`: all of it, whatever its ratio; else the centre. Palettes, CMYK and alpha become RGB.
    """
    try:
        with Image.open(io.BytesIO(photograph.content())) as image:
            image = image.convert("L" if grey else "RGB")
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError, zipfile.BadZipFile):
        return None
    if whole:
        image = image.resize((side, side), Image.Resampling.BILINEAR)
    else:
        scale = MARGIN * side / min(image.size)
        image = image.resize([max(side, round(scale * x)) for x in image.size], Image.Resampling.BILINEAR)
        left, top = ((x - side) // 2 for x in image.size)
        image = image.crop((left, top, left + side, top + side))
    return np.asarray(image).reshape(side, side, -1)


def main(options: Namespace) -> None:
    """Prepare a set, or check the existing one."""
    manifest = prepare_images(options)
    sizes = ", ".join(f"{split['images']:,} {name}" for name, split in manifest["splits"].items())
    size = f"{manifest['height']} x {manifest['width']} x {manifest['channels']}"
    unverified = "" if manifest["verified"] is not False else " (NOT the original files)"
    print(
        f"{options.dest} is ready: {manifest['corpus']}{unverified}, {size} of "
        f"{manifest['levels']} levels; {sizes}"
    )


def prepare_images(options: Namespace) -> dict:
    """The manifest of --dest; prepares the folder if it is missing.

    Raises UserError if the set cannot be read, or --dest holds another, or the set in another size.
    """
    shape = {"grey": options.grey, "size": options.size}

    def build(folder: Path) -> dict:

        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            if options.set == "dogs-vs-cats":  # decoded to the size asked for
                read = read_dogs_vs_cats(options, Path(scratch))
            else:
                read = as_asked(READERS[options.set](options), options)
            for split, (images, labels) in read.splits.items():
                if not len(images):
                    raise UserError(f"{options.set} has no image in {split}; is the sample too small?")
                save_array(folder / f"{split}.images.npy", images)
                save_array(folder / f"{split}.label.npy", labels.astype(np.int64))
        height, width, channels = read.splits["train"][0].shape[1:]
        manifest = {
            "corpus": options.set,
            "levels": read.levels,
            "height": height,
            "width": width,
            "channels": channels,
            **shape,
            "classes": list(read.classes),
            "splits": {split: {"images": len(images)} for split, (images, _) in read.splits.items()},
            "sources": read.sources,
            "verified": read.verified,
            "unreadable": list(read.unreadable),
        }
        return write_manifest(folder, manifest)

    manifest = prepare_once(options.dest, build)
    there = {"grey": False, "size": None, **manifest}
    check_prepared_with(options.dest, there, {"corpus": options.set, **shape})
    check_files(options.dest, manifest, options.source)
    accepted = options.partial or manifest["verified"] is not False
    check_accepted(options.dest, "other files than the original ones", accepted, "--partial")
    return manifest
