"""Train and evaluate the small WikiText-2 language models of results/README.md.

Trains configs/wikitext2/*.yaml with the code of scripts/train_lm.sh on all GPUs, or on the CPU without
one, and evaluates the best checkpoint on the valid and test splits with that of scripts/eval_ppl.sh.
Finished runs are skipped, and an interrupted one resumes from its last checkpoint: run the same command
again, also on another day. The results are printed as a table. The committed ones are renewed with --out
results/measured/wikitext2, which also updates the tables and curves of results/, but skips what is there.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from pipeline.console import Parser, count
from pipeline.files import MEASURED, ROOT, shown_path

RESULTS = MEASURED / "wikitext2"


def add_measuring_options(parser: Parser, results: Path) -> None:
    """The options of all commands that measure what `results`, a folder in results/measured/, holds."""
    own = ROOT / "runs" / "measured" / results.name
    parser.add_argument(
        "--from",
        dest="source",
        type=Path,
        metavar="FOLDER",
        help="WikiText-2 as published (wiki.train.tokens, ..., plain or .gz); without it the corpus is "
        "downloaded. Not needed again once the data are prepared.",
    )
    parser.add_argument(
        "--updates",
        type=count,
        metavar="N",
        help="train for N updates instead of those of the YAML",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=own,
        metavar="DIR",
        help=f"where the results go, one JSON each (default: {shown_path(own)})",
    )


def check_updates(parser: Parser, options: argparse.Namespace, results: Path) -> None:
    """`results` keeps the budget of the YAMLs."""
    if options.updates and options.out.absolute() == results:
        parser.error("--updates needs another --out: the project's results have the updates of the YAML")


def parse(words: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = Parser("scripts/measure_lm.sh", __doc__)
    add_measuring_options(parser, RESULTS)
    parser.add_argument(
        "--only",
        metavar="NAME",
        help="one architecture, such as transnormer_t1, or one run, such as transnormer_t1-seed2",
    )
    options = parser.parse_args(words)
    check_updates(parser, options, RESULTS)
    return options
