"""Train a language model as a YAML of configs/ describes it.

The YAML becomes a plain fairseq-train command, which is printed; flags of fairseq-train at the end override
it. Whatever the number of GPUs, --update-freq keeps the effective batch that of the YAML. Running the same
command again resumes from the newest whole checkpoint; a finished run is left as it is.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from pipeline.console import Parser, count, parse_before_flags

LAUNCHERS = ("spawn", "torchrun", "slurm")


def training_parser(
    command: str,
    text: str | None,
    example: str,
    data: str,
    runs: str = "runs/<experiment>/<configuration>",
) -> tuple[Parser, Parser]:
    """The parser of a training command, and that of its options alone."""
    options = Parser(command, add_help=False)
    options.add_argument(
        "--launcher",
        choices=LAUNCHERS,
        help="what starts the processes: spawn, this command itself; torchrun; slurm, that is srun (default: "
        "the one that has started this command, else spawn; docs/cluster.md)",
    )
    options.add_argument(
        "--gpus",
        type=int,
        metavar="N",
        help="GPUs of this machine to use (default: all; 0: the CPU)",
    )
    options.add_argument(
        "--cpu-processes",
        type=count,
        default=1,
        metavar="N",
        help="with --gpus 0: processes of this machine that share each batch (default: 1)",
    )
    options.add_argument(
        "--nodes",
        type=int,
        default=1,
        metavar="M",
        help="number of machines; start the same command on each, with its own --node-rank",
    )
    options.add_argument("--node-rank", type=int, default=0, metavar="R", help="this machine, 0 to M-1")
    options.add_argument("--master", metavar="ADDR", help="address of machine 0, its port 29500 unless given")
    options.add_argument(
        "--save-dir",
        type=Path,
        metavar="DIR",
        help=f"where everything goes (default: {runs} in the project)",
    )
    options.add_argument(
        "--fresh",
        action="store_true",
        help="start at update 1; checkpoints, log and curves that DIR holds move to DIR/earlier-N, "
        "and nothing is removed",
    )
    options.add_argument(
        "--allow-changed",
        nargs="+",
        default=[],
        metavar="NAME",
        help="settings of model, task or data that may differ from those of DIR's checkpoints",
    )
    options.add_argument(
        "--dry-run", action="store_true", help="print the fairseq-train command and stop; needs no GPU"
    )
    usage = f"{command} CONFIG [DATA] [options] [fairseq-train flags ...]"
    parser = Parser(command, text, parents=[options], usage=usage)
    parser.add_argument("config", type=Path, metavar="CONFIG", help=f"such as {example}")
    parser.add_argument(
        "data",
        type=Path,
        nargs="?",
        metavar="DATA",
        help=f"a folder made by {data} (default: the one the YAML names)",
    )
    return parser, options


def parse(words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Our own options, and what is left for fairseq-train."""
    example = "configs/wikitext103/transnormer_t1.yaml"
    parser, options = training_parser("scripts/train_lm.sh", __doc__, example, "data-prep/")
    text = "train on consecutive text: each batch starts with the states that the one before has left"
    for known in (parser, options):
        known.add_argument("--carry-state", action="store_true", help=text)
    given, extra = parse_before_flags(parser, options, words)
    if given.carry_state:
        extra = ["--task", "carried_language_modeling", *extra]
    return given, extra
