"""Pre-train the small encoders of results/README.md, and fine-tune the papers' own methods.

Trains configs/roberta_wikitext2/*.yaml with the code of scripts/pretrain_roberta.sh and evaluates them
with that of scripts/eval_mlm.sh. The papers' own methods are then fine-tuned as
configs/roberta_wikitext2_glue.yaml says, with the code of scripts/finetune_glue.sh. Finished runs are
skipped, and an interrupted one resumes from its last checkpoint: run the same command again. The results are
printed as tables. The committed ones are renewed with --out results/measured/roberta_wikitext2, which also
updates the tables and curves of results/, but skips what is there.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from pipeline.commands.studies.measure_lm import add_measuring_options, check_updates
from pipeline.console import Parser
from pipeline.files import MEASURED
from pipeline.methods import ENCODERS, MAIN_ENCODERS

RESULTS = MEASURED / "roberta_wikitext2"


def parse(words: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = Parser("scripts/measure_roberta.sh", __doc__)
    parser.add_argument(
        "--glue",
        type=Path,
        metavar="DIR",
        help="GLUE as published: a folder each for MRPC, CoLA and SST-2 with train.tsv and dev.tsv; needed "
        f"to fine-tune {', '.join(MAIN_ENCODERS)}",
    )
    add_measuring_options(parser, RESULTS)
    parser.add_argument(
        "--only",
        choices=list(ENCODERS),
        metavar="NAME",
        help="one configuration of configs/roberta_wikitext2, such as lln_diag",
    )
    parser.add_argument(
        "--pretrain-only",
        action="store_true",
        help="stop before GLUE, which the next run without it does",
    )
    options = parser.parse_args(words)
    check_updates(parser, options, RESULTS)
    return options
