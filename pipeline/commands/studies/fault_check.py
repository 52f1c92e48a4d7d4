"""Break training runs in many ways and check that each resumes with the losses of an unbroken run.

Process groups and parents are killed, at random and at exact system calls; a second run is started in the
folder; disks are full; checkpoints are damaged; runs of several processes and data preparations are
killed. Prints "survived n of m" for each kind and writes them to --out. The runs are small, on the CPU,
and take some minutes.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from pipeline.console import Parser, count
from pipeline.files import BENCHMARKS, shown_path

RESULT = BENCHMARKS / "fault_check.json"


def parse(words: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = Parser("scripts/fault_check.sh", __doc__)
    parser.add_argument(
        "--rounds",
        type=count,
        default=4,
        metavar="N",
        help="runs killed five times at random moments each; 1: only a few cases of each kind (default: 4)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=RESULT,
        metavar="FILE",
        help=f"where the JSON goes (default: {shown_path(RESULT)})",
    )
    return parser.parse_args(words)
