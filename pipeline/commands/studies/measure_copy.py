"""The copy task of Katharopoulos et al. 2020 (section 4.1.1): attentions x seeds, a table and the curves.

Sequences are drawn on the fly from the seed. Every run leaves ATTENTION/seedN.json in --out, and the command
writes the table copy.md and the learning curves copy.png there. Running the same command again skips finished
runs and resumes the others, even after a kill. Flags of fairseq-train at the end hold for every run, such as
--max-update 500; the table names them.
"""

import argparse
from collections.abc import Sequence

from pipeline.console import Parser, add_presets, add_seeds_and_jobs, parse_before_flags

PRESETS = ("small", "tiny", "paper")


def parse(words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Our own options, and what is left for fairseq-train."""
    command = "scripts/measure_copy.sh"
    options = Parser(command, add_help=False)
    note = "configs/copy/PRESET.yaml: small (default; minutes per run on a CPU core), tiny or paper"
    add_presets(options, "copy", PRESETS, note)
    options.add_argument(
        "--attention",
        default="all",
        metavar="NAMES",
        help="softmax, elu, norm (both or norm-t1, norm-t2), lln, lln_diag, reformer (1, 4 and 8 rounds, or "
        "reformer-N), several with commas, or all (default)",
    )
    add_seeds_and_jobs(options)
    usage = f"{command} [options] [fairseq-train flags ...]"
    return parse_before_flags(Parser(command, __doc__, parents=[options], usage=usage), options, words)
