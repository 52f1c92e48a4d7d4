"""Prepare images for --task pixels and image_classification: arrays mapped from the disk, and a JSON.

SET is digits (8 x 8, comes with scikit-learn, no download), mnist (a folder with the four idx files, packed
or not), cifar10 (cifar-10-binary.tar.gz or its folder) or dogs-vs-cats (kagglecatsanddogs_5340.zip or
train.zip, or the folder of one of them; images that cannot be read are left out and named). valid is the last
5,000 images of train, of digits 250, of Dogs vs Cats a fifth, which has no test.

    data-prep/images.sh digits --dest data/images/digits
    data-prep/images.sh mnist --from ~/Downloads --dest data/images/mnist
"""

import argparse
import os
from pathlib import Path

from pipeline.console import Parser, count
from pipeline.errors import UserError

SETS = ("digits", "mnist", "cifar10", "dogs-vs-cats")


def main() -> None:
    options = parse_arguments()
    from pipeline.data.images.writing import prepare_images

    dest = Path(os.path.abspath(options.dest))
    manifest = prepare_images(options.set, options.source, options.partial, dest, options.grey, options.size)
    sizes = ", ".join(f"{split['images']:,} {name}" for name, split in manifest["splits"].items())
    size = f"{manifest['height']} x {manifest['width']} x {manifest['channels']}"
    unverified = "" if manifest["verified"] is not False else " (NOT the original files)"
    print(
        f"{dest} is ready: {manifest['corpus']}{unverified}, {size} of {manifest['levels']} levels; {sizes}"
    )


def parse_arguments() -> argparse.Namespace:
    parser = Parser("data-prep/images.sh", __doc__)
    parser.add_argument("set", choices=SETS, metavar="SET", help=", ".join(SETS))
    parser.add_argument("--from", dest="source", type=Path, metavar="PATH", help="folder or archive")
    parser.add_argument("--dest", type=Path, required=True, metavar="FOLDER", help="where the result goes")
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
