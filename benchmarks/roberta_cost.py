#!/usr/bin/env python3
"""Cost of the RoBERTa encoders: time and memory of a training step by sequence length (LLN, Table 2).

Masked language modelling with one sequence per batch. Every architecture and length runs in its own
processes, which take turns, so that a slow minute of the machine affects all of them. Running out of memory
or time becomes a row of the table. Results are saved after every case: run the same command again to resume.
On a GPU the encoders have RoBERTa's base size, on a CPU a smaller one; there the default takes up to fifteen
minutes on two cores, and the machine should do nothing else.
"""

import argparse
import sys
from typing import Any

from benchmarks.cost_run import CostBenchmark, choose_device
from benchmarks.sizes import ROBERTA_BASE, ROBERTA_CPU, TINY
from pipeline.console import count, run_command
from pipeline.methods import ENCODERS, MAIN_ENCODERS
from pipeline.reports.costs.encoder_cost import look, markdown, plot

KNOWN = [encoder.encoder_architecture for encoder in ENCODERS.values()]
DEFAULT = [ENCODERS[name].encoder_architecture for name in MAIN_ENCODERS]
FULL = {
    "lengths": [512, 1024, 2048, 4096, 8192, 16384],
    "rounds": 2,
    "steps": 3,
    "threads": None,  # as many as torch chooses
    "keep_frees": True,
}
QUICK = {"lengths": [64, 128], "rounds": 1, "steps": 1, "threads": 1, "keep_frees": True}

BENCHMARK = CostBenchmark(
    "roberta_cost", "benchmarks.workers.roberta_cost_worker", lambda name: look(name).label, markdown, plot
)


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = BENCHMARK.command_line(__doc__, KNOWN, DEFAULT, 60)
    parser.add_argument("--lengths", nargs="+", type=count, metavar="N", help="default: all")
    parser.add_argument("--rounds", type=count, metavar="N", help="times each length is measured")
    parser.add_argument("--bf16", action="store_true", help="train as fairseq-train --bf16 does")
    return BENCHMARK.parse(parser, KNOWN, argv)


def settings_for(
    device: str, quick: bool, architectures: list[str], time_limit: float, **chosen: Any
) -> dict[str, Any]:
    """What is measured, with `chosen` instead of the plan's; runs with equal settings may be joined."""
    size = TINY if quick else ROBERTA_BASE if device == "cuda" else ROBERTA_CPU
    plan = {**(QUICK if quick else FULL), **chosen}
    return {
        "device": device,
        "size": size.as_dict(),
        **plan,
        "time_limit": time_limit,
        "architectures": architectures,
    }


def run(arguments: argparse.Namespace) -> int:
    """Measure what is missing, write results, table and plot, and return the exit status."""
    device, names = choose_device(arguments.device), arguments.architectures.split(",")
    chosen = {key: value for key in ("lengths", "rounds", "bf16") if (value := getattr(arguments, key))}
    settings = settings_for(device, arguments.quick, names, arguments.time_limit, **chosen)
    return BENCHMARK.run_training(arguments, settings, lambda length: length)


def main() -> None:
    """Entry point."""
    sys.exit(run(parse_arguments()))


if __name__ == "__main__":
    run_command(main)
