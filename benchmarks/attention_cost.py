#!/usr/bin/env python3
"""Time and memory of causal attention and its gradients against length (Katharopoulos et al. 2020, Figure 1).

Softmax attention that keeps its N x N weights, as in 2020, the fused one of today, linear attention, and
Reformer's with 1, 4 and 8 rounds, at lengths from 512 to 65,536: 65,536 tokens per batch on a GPU, one
sequence on a CPU. Every attention and length runs in its own processes, which take turns; running out of
memory or time becomes a row. Results are saved after every case: run the same command again to resume. On
two cores it takes about half an hour; the machine should do nothing else.
"""

import argparse
import sys
from typing import Any

from benchmarks.cost_run import CostBenchmark, choose_device
from pipeline.console import run_command
from pipeline.methods import Size
from pipeline.reports.costs.attention_cost import OPERATORS, markdown, plot

FULL = {
    "lengths": [2**n for n in range(9, 17)],
    "rounds": 2,
    "steps": 3,
    "threads": None,  # as many as torch chooses
}
QUICK = {"lengths": [64, 256], "rounds": 1, "steps": 1, "threads": 1}
TOKENS = 65_536  # of a batch on a GPU
HEADS_OF_64 = Size(layers=0, width=512, heads=8, vocabulary=0)
TINY_HEADS = Size(layers=0, width=16, heads=2, vocabulary=0)

BENCHMARK = CostBenchmark(
    "attention_cost",
    "benchmarks.workers.attention_cost_worker",
    lambda name: OPERATORS[name].label,
    markdown,
    plot,
)


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    known = list(OPERATORS)
    return BENCHMARK.parse(BENCHMARK.command_line(__doc__, known, known, 150), known, argv)


def settings_for(device: str, quick: bool, architectures: list[str]) -> dict[str, Any]:
    """What is measured; runs with equal settings may be joined. No `tokens`: one sequence per batch."""
    size = TINY_HEADS if quick else HEADS_OF_64
    plan = {**(QUICK if quick else FULL), "tokens": TOKENS if device == "cuda" else None}
    return {"device": device, "size": size.as_dict(), **plan, "architectures": architectures}


def run(arguments: argparse.Namespace) -> int:
    """Measure what is missing, write results, table and plot, and return the exit status."""
    names = arguments.architectures.split(",")
    settings = settings_for(choose_device(arguments.device), arguments.quick, names)
    return BENCHMARK.run_training(arguments, settings, lambda length: settings["tokens"] or length)


def main() -> None:
    """Entry point."""
    sys.exit(run(parse_arguments()))


if __name__ == "__main__":
    run_command(main)
