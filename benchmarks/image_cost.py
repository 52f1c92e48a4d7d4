#!/usr/bin/env python3
"""How fast images are drawn byte by byte (Katharopoulos et al. 2020, Tables 1, 2, 4 and 5).

Softmax attention that runs the whole prefix again for every byte or keeps a cache, attentions that keep a
state of constant size, and Reformer both ways, at the paper's sizes for MNIST and CIFAR-10 with random
weights; batches of 1, 4, 16, ... until memory or time ends. Every case runs in its own process. Results are
saved after every case: run the same command again to resume. On two cores it takes some hours; the machine
should do nothing else.
"""

import argparse
import sys
from dataclasses import replace
from typing import Any

from benchmarks.cost_run import CostBenchmark, choose_device
from pipeline.console import run_command
from pipeline.methods import Size
from pipeline.reports.costs.image_cost import WAYS, markdown, plot

SIZES = {
    "mnist": Size(layers=8, width=256, heads=8, vocabulary=256),
    "cifar10": Size(layers=16, width=256, heads=8, vocabulary=256),
}
TINY = {"tiny": Size(layers=2, width=16, heads=2, vocabulary=256)}
GROWTH = 4  # of the batch
FULL = {"batches": [GROWTH**n for n in range(8)], "threads": None}  # as many as torch chooses
QUICK = {"batches": [1, 4], "threads": 1}
TIME_LIMIT = 600

BENCHMARK = CostBenchmark(
    "image_cost", "benchmarks.workers.image_cost_worker", lambda name: WAYS[name].label, markdown, plot
)


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    known = list(WAYS)
    parser = BENCHMARK.command_line(__doc__, known, known, TIME_LIMIT)
    parser.add_argument(
        "--images",
        default=",".join(SIZES),
        help="comma-separated, of mnist and cifar10; one alone has a file of its own (default: both)",
    )
    arguments = BENCHMARK.parse(parser, known, argv)
    if unknown := [name for name in arguments.images.split(",") if name not in SIZES]:
        parser.error(f"--images names {unknown[0]!r}; choose from {', '.join(SIZES)}")
    return arguments


def benchmark_for(arguments: argparse.Namespace) -> CostBenchmark:
    """The benchmark under the name of its files: one kind of images is kept apart from both."""
    images = set(arguments.images.split(","))
    return BENCHMARK if images == set(SIZES) else replace(BENCHMARK, name=f"image_cost_{images.pop()}")


def settings_for(device: str, quick: bool, architectures: list[str], images: list[str]) -> dict[str, Any]:
    """What is measured; runs with equal settings may be joined."""
    sizes = TINY if quick else {name: SIZES[name] for name in images}
    plan = QUICK if quick else FULL
    written = {name: size.as_dict() for name, size in sizes.items()}
    return {"device": device, "sizes": written, **plan, "architectures": architectures}


def cases_of(settings: dict[str, Any]) -> list[dict[str, Any]]:
    """All processes to run; for each kind of images attentions take turns, from small to large batches."""
    return [
        {"kind": "sampling", "architecture": name, "images": images, "batch": batch, "round": 0}
        for images in settings["sizes"]
        for batch in settings["batches"]
        for name in settings["architectures"]
    ]


def is_hopeless(results: dict[str, Any], case: dict[str, Any], time_limit: float) -> bool:
    """Whether a smaller batch could not be measured, or took so long that this one would not end."""
    return any(
        record["status"] != "ok" or record["spent_s"] > time_limit / GROWTH
        for record in results["records"]
        if record["batch"] < case["batch"]
        and all(record[key] == case[key] for key in ("architecture", "images"))
    )


def run(arguments: argparse.Namespace) -> int:
    """Measure what is missing, write results, table and plot, and return the exit status."""
    device = choose_device(arguments.device)
    names, images = arguments.architectures.split(","), arguments.images.split(",")
    settings = settings_for(device, arguments.quick, names, images)

    def question(case: dict[str, Any]) -> dict[str, Any]:
        return {"size": settings["sizes"][case["images"]], "threads": settings["threads"]}

    def hopeless(results: dict[str, Any], case: dict[str, Any]) -> bool:
        return is_hopeless(results, case, arguments.time_limit)

    return benchmark_for(arguments).run(arguments, settings, cases_of(settings), question, hopeless)


def main() -> None:
    """Entry point."""
    sys.exit(run(parse_arguments()))


if __name__ == "__main__":
    run_command(main)
