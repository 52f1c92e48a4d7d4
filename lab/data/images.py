"""Prepare images for --task pixels and image_classification: arrays mapped from the disk, and a JSON.

SET is digits (8 x 8, comes with scikit-learn, no download), mnist (a folder with the four idx files, packed
or not), cifar10 (cifar-10-binary.tar.gz or its folder) or dogs-vs-cats (kagglecatsanddogs_5340.zip or
train.zip, or the folder of one of them; images that cannot be read are left out and named). valid is the last
5,000 images of train (a tenth if there are fewer than 50,000), of digits 250, of Dogs vs Cats a fifth,
which is also its test split.

    data-prep/images.sh digits --dest data/images/digits
    data-prep/images.sh mnist --from ~/Downloads --dest data/images/mnist
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np

from lab.console import Parser, count
from lab.data.arrays import save_array
from lab.data.dogs_vs_cats import read_dogs_vs_cats
from lab.data.image_sets import READERS, as_asked
from lab.data.preparation import (
    add_dest,
    check_accepted,
    check_settings,
    prepare_once,
    write_manifest,
)
from lab.errors import UserError

SETS = ("digits", "mnist", "cifar10", "dogs-vs-cats")


def main() -> None:
    options = parse_arguments()
    manifest = prepare_images(options)
    sizes = ", ".join(f"{split['images']:,} {name}" for name, split in manifest["splits"].items())
    size = f"{manifest['height']} x {manifest['width']} x {manifest['channels']}"
    unverified = "" if manifest["verified"] is not False else " (NOT the original files)"
    print(
        f"{options.dest} is ready: {manifest['corpus']}{unverified}, {size} of "
        f"{manifest['levels']} levels; {sizes}"
    )


def prepare_images(options: argparse.Namespace) -> dict:
    """The manifest of --dest, which is made unless it is there.

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
                    raise UserError(
                        f"{options.set} has no image in {split}; is it a sample that is too small?"
                    )
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
    check_settings(options.dest, there, {"corpus": options.set, **shape})
    accepted = options.partial or manifest["verified"] is not False
    check_accepted(options.dest, "other files than the original ones", accepted, "--partial")
    return manifest


def parse_arguments() -> argparse.Namespace:
    parser = Parser("data-prep/images.sh", __doc__)
    parser.add_argument("set", choices=SETS, metavar="SET", help=", ".join(SETS))
    parser.add_argument("--from", dest="source", type=Path, metavar="PATH", help="folder or archive")
    add_dest(parser)
    parser.add_argument(
        "--partial",
        action="store_true",
        help="take other files than the original ones, such as a sample; every table then says so",
    )
    parser.add_argument("--grey", action="store_true", help="one channel instead of three")
    parser.add_argument(
        "--size",
        type=count,
        metavar="PIXELS",
        help="side of the images: of dogs-vs-cats any (default: 224), of the others a divisor of theirs, "
        "whose squares become their means",
    )
    options = parser.parse_args()
    if options.source is not None and not options.source.exists():
        raise UserError(f"--from: there is no {options.source}")
    return options
