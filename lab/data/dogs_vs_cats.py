"""Dogs vs Cats (Elson et al. 2007): photographs as Kaggle or Microsoft publish them, decoded to one size."""

import argparse
import io
import re
import zipfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image
from tqdm import tqdm

from lab.data.image_sets import ImageSet, Part
from lab.data.published import CORPORA
from lab.errors import UserError
from lab.files import sha256_of
from lab.provenance import usable_cores

CLASSES = ("cat", "dog")
EACH = 12_500  # photographs of a class
NAME = re.compile(r"(?:^|/)(cat|dog)[./](\d+)\.jpg$", re.IGNORECASE)
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


def read_dogs_vs_cats(options: argparse.Namespace, scratch: Path) -> ImageSet:
    """Two splits, the second of them a fifth of each class: valid, which is also what is tested on.

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
        if match := NAME.search(name):
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
    """Names below `source` and what reads each."""
    if source.is_dir():
        for path in sorted(source.rglob("*.jpg")):
            yield path.relative_to(source).as_posix(), path.read_bytes
        return
    try:
        archive = zipfile.ZipFile(source)
    except (zipfile.BadZipFile, OSError):
        raise UserError(f"{source} is no zip file, or is cut off; {ORIGIN}") from None
    for name in archive.namelist():
        yield name, partial(archive.read, name)


def check_original(
    options: argparse.Namespace, found: Sequence[Photograph]
) -> tuple[bool | None, dict[str, str]]:
    """Whether these are the original photographs, None if nobody can tell; and the sha256 of a zip file.

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
    """The images that can be read, in an array mapped from `path`, their classes, and the others' names."""
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
