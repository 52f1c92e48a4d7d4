"""A prepared folder of images: SPLIT.images.npy, SPLIT.label.npy and preparation.json."""

import tempfile
from pathlib import Path

import numpy as np

from pipeline.data.images.request import Request
from pipeline.data.images.sets import read_set
from pipeline.data.preparation import Workplace, prepare_once, write_manifest
from pipeline.errors import UserError


def prepare_images(
    name: str, source: Path | None, partial: bool, dest: Path, grey: bool = False, size: int | None = None
) -> dict:
    """The manifest of `dest`, which is made from `source` unless it is there; see `Request`.

    Raises UserError if the set cannot be read, or `dest` holds another, or the set in another size.
    """

    def build(place: Workplace) -> dict:
        with tempfile.TemporaryDirectory(dir=place.folder) as scratch:
            read = read_set(name, Request(source, partial, grey, size, Path(scratch)))
            for split, (images, labels) in read.splits.items():
                if not len(images):
                    raise UserError(f"{name} has no image in {split}; is it a sample that is too small?")
                np.save(place.folder / f"{split}.images.npy", np.ascontiguousarray(images))
                np.save(place.folder / f"{split}.label.npy", labels.astype(np.int64))
        height, width, channels = read.splits["train"][0].shape[1:]
        return write_manifest(
            place.folder,
            {
                "corpus": name,
                "levels": read.levels,
                "height": height,
                "width": width,
                "channels": channels,
                "grey": grey,
                "size": size,
                "classes": list(read.classes),
                "splits": {split: {"images": len(images)} for split, (images, _) in read.splits.items()},
                "sources": read.sources,
                "verified": read.verified,
                "unreadable": list(read.unreadable),
            },
        )

    manifest = prepare_once(dest, build)
    if manifest.get("corpus") != name:
        raise UserError(f"{dest} holds {manifest.get('corpus')}, not {name}; name another --dest")
    if (manifest.get("grey", False), manifest.get("size")) != (grey, size):
        shape = " x ".join(str(manifest[key]) for key in ("height", "width", "channels"))
        raise UserError(
            f"{dest} holds images of {shape}, made with another --grey or --size; name another --dest"
        )
    return manifest
