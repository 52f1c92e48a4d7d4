#!/usr/bin/env python3
"""Cost of training the speech encoder of Katharopoulos et al. 2020 (4.3) with softmax, Reformer and 1+elu.

9 layers of width 192, 6 heads, CTC over 42 classes, on random frames: 800 per utterance on average, 2,400 at
most; 10 utterances a step on a GPU, 4 on a CPU. Nothing is recognised, since the paper's corpus is licensed.
Every attention runs in its own processes, which take turns; running out of memory or time becomes a row.
Results are saved after every case: run the same command again to resume. On two cores it takes about ten
minutes; the machine should do nothing else.
"""

import argparse
import sys
from typing import Any

from benchmarks.cost_run import CostBenchmark, choose_device
from pipeline.console import run_command
from pipeline.methods import Size
from pipeline.reports.costs.speech_cost import COMPARED, markdown, plot
from pipeline.sequence_methods import SEQUENCE_METHODS

LONGEST = 2400
FULL = {"lengths": [LONGEST], "rounds": 3, "steps": 3, "threads": None}
UTTERANCES = {"cuda": 10, "cpu": 4}  # the paper's batch; with softmax it takes more than 24 GiB
QUICK = {"lengths": [64], "utterances": 2, "rounds": 1, "steps": 1, "threads": 1}
PAPER = Size(layers=9, width=192, heads=6, vocabulary=42)
TINY = Size(layers=2, width=12, heads=2, vocabulary=5)

BENCHMARK = CostBenchmark(
    "speech_cost",
    "benchmarks.workers.speech_cost_worker",
    lambda name: SEQUENCE_METHODS[name].label,
    markdown,
    plot,
)


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    known = list(COMPARED)
    return BENCHMARK.parse(BENCHMARK.command_line(__doc__, known, known, 300), known, argv)


def settings_for(device: str, quick: bool, architectures: list[str]) -> dict[str, Any]:
    """What is measured; runs with equal settings may be joined."""
    size = TINY if quick else PAPER
    plan = QUICK if quick else {**FULL, "utterances": UTTERANCES[device]}
    return {"device": device, "size": size.as_dict(), **plan, "architectures": architectures}


def run(arguments: argparse.Namespace) -> int:
    """Measure what is missing, write results, table and plot, and return the exit status."""
    names = arguments.architectures.split(",")
    settings = settings_for(choose_device(arguments.device), arguments.quick, names)
    return BENCHMARK.run_training(arguments, settings, lambda length: settings["utterances"] * length)


def main() -> None:
    """Entry point."""
    sys.exit(run(parse_arguments()))


if __name__ == "__main__":
    run_command(main)
