"""Build, check and measure the CUDA kernels on a machine with an NVIDIA GPU, within 11 minutes.

Parts: build, info, tests (of the CUDA kernels), triton (tests of the Triton kernels), operator (its speed),
models (their cost) and, with --data, train: a short bf16 training of transnormer_t1, transnormer_t2 and
transformer_lm on equal budgets. Without --only, all of them run. Each part's log (and JSON)
is in the folder of --out as soon as it ends; a part that fails or takes too long does not stop the next.
PYTHON names the interpreter (default: .venv's, else python3), which needs torch, setuptools, pytest and
hypothesis; without fairseq the models and trainings are left out. Nothing is downloaded.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from pipeline.console import Parser, add_out_dir, out_dir

PARTS = ("build", "info", "tests", "triton", "operator", "models", "train")


def parse(words: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = Parser("scripts/gpu_check.sh", __doc__)
    add_out_dir(parser)
    parser.add_argument("--data", type=Path, metavar="BINARISED", help="a corpus for the short training")
    parser.add_argument("--only", metavar="NAMES", help=f"some of {', '.join(PARTS)}, with commas")
    options = parser.parse_intermixed_args(words)
    options.only = tuple((options.only or ",".join(PARTS)).split(","))
    if unknown := [name for name in options.only if name not in PARTS]:
        parser.error(f"there is no part {unknown[0]!r}; choose some of {', '.join(PARTS)}")
    options.out = out_dir(options)
    if options.out is None:
        parser.error("name the folder for logs and results with --out")
    if options.data is not None and not (options.data / "dict.txt").is_file():
        parser.error(f"{options.data} holds no dict.txt: it is not a binarised corpus")
    return options
