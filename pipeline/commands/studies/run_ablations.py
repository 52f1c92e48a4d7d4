"""Pre-train the encoders of TransNormer's ablations and compare their perplexities with the paper's.

Flags at the end go to every fairseq-train, such as --max-update 1000. A configuration with a result is
skipped, an interrupted one resumes from its last checkpoint, and one that fails (1+elu without scaling
may diverge) does not stop the others. The table is printed and written to DIR/ABLATION/table.md.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from pipeline.console import Parser, parse_before_flags
from pipeline.files import ROOT

COMMAND = "scripts/run_ablations.sh"


def parse(words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Our own options, and what is left for fairseq-train."""
    options = Parser(COMMAND, add_help=False)
    options.add_argument(
        "--data",
        type=Path,
        metavar="DATA",
        help="a folder written by data-prep/roberta.sh (default: the one the YAMLs name)",
    )
    options.add_argument("--gpus", type=int, metavar="N", help="GPUs to use (default: all; 0: the CPU)")
    options.add_argument(
        "--out",
        type=Path,
        default=ROOT / "runs",
        metavar="DIR",
        help="where runs and tables go (default: runs/)",
    )
    usage = f"{COMMAND} ABLATION [options] [fairseq-train flags ...]"
    parser = Parser(COMMAND, __doc__, parents=[options], usage=usage)
    known = ", ".join(path.name for path in sorted((ROOT / "configs").glob("ablation_*")))
    parser.add_argument("which", metavar="ABLATION", help=f"a folder of configs/: {known}; or all")
    return parse_before_flags(parser, options, words)
