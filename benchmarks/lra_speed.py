#!/usr/bin/env python3
"""Speed and memory on Long Range Arena's Text by sequence length (TransNormer, Table 7).

Inference and training of the same classifier with each attention. With --lengths exact every row has the
length named; with --lengths review rows are reviews cut there, and a batch is as long as its longest, as in
TransNormer's paper. Each case runs in its own process; running out of memory becomes a dash. Results are
saved after every case: run the same command again to resume. --sweep also draws accuracy against speed and
memory.
"""

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.cost_run import CostBenchmark, choose_device, training_cases
from benchmarks.sizes import TINY
from pipeline.console import count, run_command
from pipeline.errors import UserError
from pipeline.files import read_json, shown_path
from pipeline.methods import ATTENTIONS, Size, label_of
from pipeline.reports.costs.lra_speed import KINDS, markdown, plot, plot_accuracy
from pipeline.study.records import read_records

# The vocabulary is that of all reviews in the authors' pipeline: 132 characters and fairseq's four.
BASE = Size(layers=6, width=128, heads=8, vocabulary=136)
LENGTHS = [1000, 2000, 3000, 4000, 5000]
QUICK_LENGTHS = [128, 256]  # no shorter than the landmarks of some methods
# Batch and steps by device.
FULL = {"cuda": {"batch": 20, "steps": 200}, "cpu": {"batch": 1, "steps": 3}}
QUICK = {"batch": 2, "steps": 1}
BENCHMARK = CostBenchmark("lra_speed", "benchmarks.workers.lra_speed_worker", label_of, markdown, plot)


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    known = list(ATTENTIONS)
    parser = BENCHMARK.command_line(__doc__, known, known, 60)
    parser.add_argument(
        "--lengths", choices=("exact", "review"), default="exact", help="see above (default: %(default)s)"
    )
    parser.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help="for --lengths review: made by data-prep/lra.sh text --pipeline state-space",
    )
    parser.add_argument("--steps", type=count, metavar="N", help="timed steps (default: GPU 200, CPU 3)")
    parser.add_argument(
        "--sweep",
        type=Path,
        metavar="DIR",
        help="records of scripts/study.sh lra of one preset and setting, such as "
        "results/lra/lra_skyformer/short: their accuracies go into NAME_accuracy.png beside --out",
    )
    arguments = BENCHMARK.parse(parser, known, argv)
    if (arguments.lengths == "review") != (arguments.data is not None):
        parser.error("--lengths review needs --data, and only it does")
    return arguments


def settings_for(arguments: argparse.Namespace, device: str) -> dict[str, Any]:
    """What is measured; two runs with equal settings may be joined. UserError for unusable data."""
    size, plan = (TINY, QUICK) if arguments.quick else (BASE, FULL[device])
    described = None
    if arguments.data:
        # Here, since fairseq logs when it is imported.
        from pipeline.training.lra_run import describe_data, open_data

        data = open_data(arguments.data.absolute(), ("train",))
        if data.task != "text":
            raise UserError(f"{arguments.data} holds {data.task}; the benchmark reads text")
        described = describe_data(data)
        size = replace(size, vocabulary=data.manifest["vocabulary"])
    return {
        "device": device,
        "size": size.as_dict(),
        "mode": arguments.lengths,
        "data": described,
        "lengths": QUICK_LENGTHS if arguments.quick else LENGTHS,
        "rounds": 1,
        **plan,
        **({"steps": arguments.steps} if arguments.steps else {}),
        "threads": 1 if arguments.quick else None,
        "keep_frees": True,
        "time_limit": arguments.time_limit,
        "architectures": arguments.architectures.split(","),
    }


def run(arguments: argparse.Namespace) -> int:
    """Measure what is missing, write results, table and plots, and return the exit status."""
    settings = settings_for(arguments, choose_device(arguments.device))
    reviews = arguments.data and str(arguments.data.absolute())
    benchmark = replace(BENCHMARK, name="lra_speed_review") if reviews else BENCHMARK
    cells = read_sweep(arguments.sweep) if arguments.sweep else []

    def question(case: dict[str, Any]) -> dict[str, Any]:
        shared = {key: settings[key] for key in ("size", "threads", "steps", "keep_frees")}
        return {**shared, "tokens": case["length"] * settings["batch"], "reviews": reviews}

    cases = [case for kind in KINDS for case in training_cases(settings, kind)]
    status = benchmark.run(arguments, settings, cases, question)
    if cells:
        path = benchmark.results_path(arguments, settings["device"])
        picture = path.with_name(f"{path.stem}_accuracy.png")
        plot_accuracy(read_json(path), cells, picture)
        print(f"written: {shown_path(picture)}")
    return status


def read_sweep(folder: Path) -> list[dict[str, Any]]:
    """The records of study `lra` in `folder`; UserError if there are none, or of several settings."""
    records = read_records(folder, "lra")
    if not records:
        raise UserError(f"{folder} holds no record of scripts/study.sh lra")
    settings = {f"{one['cell']['preset']}/{one['cell']['setting']}" for one in records}
    if len(settings) > 1:
        raise UserError(
            f"{folder} holds runs of {', '.join(sorted(settings))}; name the folder of one of them"
        )
    return records


def main() -> None:
    """Entry point."""
    sys.exit(run(parse_arguments()))


if __name__ == "__main__":
    run_command(main)
