"""Vision Transformers as in LLN's Table 3 and Figures 9 and 10: attentions x seeds, a table and curves.

Trains configs/vit/PRESET_ATTENTION.yaml and takes the accuracy of the last checkpoint on test, or on
valid where there is no test. --alpha also trains LLN+Diag with fixed alpha = beta. Every run leaves
ATTENTION/seedN.json in --out, and the command writes the table vit.md and the curves vit.png there. Running
the same command again skips finished runs and resumes the others, even after a kill. Flags of fairseq-train
at the end hold for every run, such as --max-update 500; the table names them.
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
from pipeline.sequence_methods import VIT_METHODS

PRESETS = ("digits", "cifar10", "dogs_vs_cats")


def parse(words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Our own options, and what is left for fairseq-train."""
    command = "scripts/measure_vit.sh"
    options = Parser(command, add_help=False)
    note = "digits (default; a minute or two per run on a CPU core), cifar10, or dogs_vs_cats, the paper's"
    add_presets(options, "vit", PRESETS, note)
    options.add_argument(
        "--attention",
        default="all",
        metavar="NAMES",
        help=f"some of {', '.join(VIT_METHODS)} with commas, or all (default)",
    )
    options.add_argument(
        "--alpha",
        default="",
        metavar="NUMBERS",
        help="fixed alpha = beta with which LLN+Diag is trained, too (Figure 10a), such as 0.25,1,2,4,8",
    )
    add_seeds_and_jobs(options)
    add_prepared_images(options)
    usage = f"{command} [options] [fairseq-train flags ...]"
    return parse_before_flags(Parser(command, __doc__, parents=[options], usage=usage), options, words)
