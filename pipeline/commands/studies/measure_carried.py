"""Training on consecutive text with carried state on WikiText-2: models x segments, a table and curves.

Each model of configs/wikitext2 is trained twice with each segment length: on samples apart from each other,
and with the states of the samples before (--carry-state), both with the YAML's tokens per update. Every
checkpoint is evaluated on test both ways. Every run leaves MODEL/SEGMENT-apart|carried/seedN.json in --out,
and the command writes the table carried.md and the curves carried.png there. Running the same command again
skips finished runs and resumes the others, even after a kill. Flags of fairseq-train at the end hold for
every run, such as --max-update 300; the table names them.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from pipeline.console import Parser, add_seeds_and_jobs, parse_before_flags

MODELS = ("transnormer_t1", "transnormer_t2", "linear_transformer_lm", "lln_diag_lm")


def parse(words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Our own options, and what is left for fairseq-train."""
    command = "scripts/measure_carried.sh"
    options = Parser(command, add_help=False)
    options.add_argument(
        "--models",
        default=",".join(MODELS),
        metavar="NAMES",
        help="YAMLs of configs/wikitext2 with commas (default: %(default)s)",
    )
    options.add_argument(
        "--segments", default="64,256", metavar="NUMBERS", help="tokens of a sample (default: %(default)s)"
    )
    options.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help="made by data-prep/wikitext.sh (default: the one the YAMLs name)",
    )
    options.add_argument(
        "--out", type=Path, metavar="DIR", help="where runs and results go (default: runs/carried)"
    )
    add_seeds_and_jobs(options)
    usage = f"{command} [options] [fairseq-train flags ...]"
    return parse_before_flags(Parser(command, __doc__, parents=[options], usage=usage), options, words)
