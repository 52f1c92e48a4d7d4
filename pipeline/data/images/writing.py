"""A prepared folder of images: SPLIT.images.npy, SPLIT.label.npy and preparation.json."""

from pathlib import Path

import numpy as np

from pipeline.data.images.sets import SETS
from pipeline.data.preparation import Workplace, prepare_once, write_manifest
from pipeline.errors import UserError


def prepare_images(name: str, source: Path | None, partial: bool, dest: Path) -> dict:
    """The manifest of `dest`, which is made from `source` unless it is there.

    Raises UserError if the set cannot be read, or `dest` holds another.
    """

    def build(place: Workplace) -> dict:
        read = SETS[name](source, partial)
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
                "classes": list(read.classes),
                "splits": {split: {"images": len(images)} for split, (images, _) in read.splits.items()},
                "sources": read.sources,
                "verified": read.verified,
            },
        )

    manifest = prepare_once(dest, build)
    if manifest.get("corpus") != name:
        raise UserError(f"{dest} holds {manifest.get('corpus')}, not {name}; name another --dest")
    return manifest
