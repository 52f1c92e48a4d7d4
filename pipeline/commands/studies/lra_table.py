"""Train and test on Long Range Arena: tasks x attentions x seeds, and the table beside the papers' rows.

PRESET is a folder of YAMLs, configs/lra_skyformer or configs/lra_state_space. The table shows the papers'
rows of the same data pipeline: those of different pipelines cannot be compared. Every run leaves
TASK/ATTENTION/seedN.json in --out, and the table is lra.md there. Running the same command again skips
finished runs and resumes the others, even after a kill. Flags of fairseq-train at the end hold for every run,
such as --max-update 2000 --warmup-updates 200 for a small setting; the table names them.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from pipeline.console import Parser, add_seeds_and_jobs, parse_before_flags


def parse(words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Our own options, and what is left for fairseq-train."""
    command = "scripts/lra_table.sh"
    options = Parser(command, add_help=False)
    options.add_argument(
        "--attention",
        default="all",
        metavar="NAMES",
        help="transnormer_t1, transnormer_t2 and names of layer plans, several with commas, or all (default)",
    )
    options.add_argument(
        "--tasks",
        metavar="NAMES",
        help="listops, text, retrieval, image, pathfinder, path-x, several with commas (default: those of "
        "the five without path-x that are prepared)",
    )
    add_seeds_and_jobs(options)
    options.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help="holds the folders made by data-prep/lra.sh (default: data/lra)",
    )
    options.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="where runs and results go (default: runs/lra_table/<preset>)",
    )
    usage = f"{command} PRESET [options] [fairseq-train flags ...]"
    parser = Parser(command, __doc__, parents=[options], usage=usage)
    parser.add_argument("preset", type=Path, metavar="PRESET", help="such as configs/lra_skyformer")
    return parse_before_flags(parser, options, words)
