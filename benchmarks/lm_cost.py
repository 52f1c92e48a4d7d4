#!/usr/bin/env python3
"""Cost of the language models: time and memory of training, time per decoded token.

Training is measured at several lengths with a constant number of tokens per batch, decoding at several
positions. Every architecture and length runs in its own processes, which take turns, so that a slow minute of
the machine affects all of them. Running out of memory or time becomes a row of the table. Results are saved
after every case: run the same command again to resume. On two cores it takes about ten minutes; the machine
should do nothing else.
"""

import argparse
import sys
from typing import Any

from benchmarks.cost_run import CostBenchmark, choose_device, training_cases
from benchmarks.sizes import BASE, SMALL, TINY
from pipeline.console import run_command
from pipeline.methods import LANGUAGE_MODELS, MAIN_LANGUAGE_MODELS
from pipeline.reports.costs.lm_cost import markdown, plot

FULL = {
    "tokens": 16384,
    "lengths": [512, 1024, 2048, 4096, 8192, 16384],
    "positions": [10, 1000, 10_000, 100_000],
    "rounds": 2,
    "steps": 3,
    "decoding_steps": 64,
    "visits": 6,
    "threads": None,  # as many as torch chooses
}
QUICK = {
    "tokens": 256,
    "lengths": [64, 256],
    "positions": [10, 100],
    "rounds": 1,
    "steps": 1,
    "decoding_steps": 4,
    "visits": 1,
    "threads": 1,  # steps this small only wait for each other
}

BENCHMARK = CostBenchmark(
    "lm_cost", "benchmarks.workers.lm_cost_worker", lambda name: LANGUAGE_MODELS[name].label, markdown, plot
)


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    known = list(LANGUAGE_MODELS)
    parser = BENCHMARK.command_line(__doc__, known, MAIN_LANGUAGE_MODELS, 150)
    parser.add_argument(
        "--lengths",
        help="comma-separated lengths that divide the number of tokens per batch; default: all",
    )
    parser.add_argument("--rounds", type=int, help="number of times training is measured at each length")
    parser.add_argument("--bf16", action="store_true", help="train as fairseq-train --bf16 does")
    arguments = BENCHMARK.parse(parser, known, argv)
    lengths = arguments.lengths.split(",") if arguments.lengths else []
    tokens = (QUICK if arguments.quick else FULL)["tokens"]
    if not all(x.isdecimal() and int(x) and tokens % int(x) == 0 for x in lengths):
        parser.error(f"--lengths is {arguments.lengths}; expected divisors of {tokens}, comma-separated")
    if arguments.rounds is not None and arguments.rounds < 1:
        parser.error(f"--rounds is {arguments.rounds}; expected 1 or more")
    return arguments


def settings_for(device: str, quick: bool, architectures: list[str], **chosen: Any) -> dict[str, Any]:
    """What is measured, with `chosen` instead of the plan's; runs with equal settings may be joined."""
    size = TINY if quick else BASE if device == "cuda" else SMALL
    plan = {**(QUICK if quick else FULL), **chosen}
    return {"device": device, "size": size.as_dict(), **plan, "architectures": architectures}


def cases_of(settings: dict[str, Any]) -> list[dict[str, Any]]:
    """All processes to run."""
    decoding = [{"kind": "decoding", "architecture": name, "round": 0} for name in settings["architectures"]]
    return decoding + training_cases(settings)


def run(arguments: argparse.Namespace) -> int:
    """Measure what is missing, write results, table and plot, and return the exit status."""
    device = choose_device(arguments.device)
    chosen = {"rounds": arguments.rounds} if arguments.rounds else {}
    if arguments.bf16:
        chosen["bf16"] = True
    if arguments.lengths:
        chosen["lengths"] = [int(x) for x in arguments.lengths.split(",")]
    settings = settings_for(device, arguments.quick, arguments.architectures.split(","), **chosen)

    def question(case: dict[str, Any]) -> dict[str, Any]:
        keys = ("size", "tokens", "positions", "visits", "threads", "bf16")
        shared = {key: settings[key] for key in keys if key in settings}
        return {**shared, "steps": settings["decoding_steps" if case["kind"] == "decoding" else "steps"]}

    return BENCHMARK.run(arguments, settings, cases_of(settings), question)


def main() -> None:
    """Entry point."""
    sys.exit(run(parse_arguments()))


if __name__ == "__main__":
    run_command(main)
