"""Images byte by byte (Katharopoulos et al. 2020, section 4.2): attentions x seeds, a table and samples.

Trains configs/images/PRESET_ATTENTION.yaml and measures bits per dimension of the last checkpoint on train,
valid and test; it also draws images and completes the upper halves of test images. Every run leaves
ATTENTION/seedN.json in --out, and the command writes the table images.md and the picture images.png there.
Running the same command again skips finished runs and resumes the others, even after a kill. Flags of
fairseq-train at the end hold for every run, such as --max-update 500; the table names them.
"""

import argparse
from collections.abc import Sequence

from pipeline.console import (
    Parser,
    add_prepared_images,
    add_presets,
    add_seeds_and_jobs,
    parse_before_flags,
)
from pipeline.sequence_methods import PIXEL_METHODS

PRESETS = ("digits", "mnist", "cifar10")


def parse(words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Our own options, and what is left for fairseq-train."""
    command = "scripts/measure_images.sh"
    options = Parser(command, add_help=False)
    note = "digits (default; a minute or two per run on a CPU core), mnist or cifar10, the paper's"
    add_presets(options, "images", PRESETS, note)
    options.add_argument(
        "--attention",
        default="all",
        metavar="NAMES",
        help=f"some of {', '.join(PIXEL_METHODS)} with commas, or all that the preset has (default)",
    )
    add_seeds_and_jobs(options)
    add_prepared_images(options)
    usage = f"{command} [options] [fairseq-train flags ...]"
    return parse_before_flags(Parser(command, __doc__, parents=[options], usage=usage), options, words)
