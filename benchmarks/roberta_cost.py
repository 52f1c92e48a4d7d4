#!/usr/bin/env python3
"""What the RoBERTa encoders cost: time and memory of a training step against the length (LLN, Table 2).

One sequence a batch, masked language modelling. Every architecture and length runs in processes of
its own, which take turns, so that a slow minute of the machine meets all of them; memory that runs
out or a case that takes too long is a row of the table. What is measured is kept after every case:
run the same command again and it carries on. On a GPU the encoders have RoBERTa's base size, on a
CPU a smaller one; there the default takes up to fifteen minutes on two cores, and the machine
should do nothing else.
"""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.architectures import TINY  # noqa: E402
from benchmarks.common import CommandLine, environment, shown_path, write_json  # noqa: E402
from benchmarks.lm_cost import choose_device, describe, is_done, same_case, start_or_resume  # noqa: E402
from benchmarks.memory import memory_available  # noqa: E402
from benchmarks.processes import run_case  # noqa: E402
from benchmarks.roberta_cost_models import (  # noqa: E402
    BASE,
    CPU_SIZE,
    DEFAULT,
    known_architectures,
    look,
)
from benchmarks.roberta_cost_report import markdown, plot  # noqa: E402
from scripts.command import run_command, write_atomically  # noqa: E402

WORKER = "benchmarks.roberta_cost_worker"
FULL = {
    "lengths": [512, 1024, 2048, 4096, 8192, 16384],
    "rounds": 2,
    "steps": 3,
    "threads": None,  # as many as torch chooses
}
QUICK = {"lengths": [64, 128], "rounds": 1, "steps": 1, "threads": 1}


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = CommandLine(__doc__)
    parser.add_argument(
        "--device",
        choices=("auto", "cpu", "cuda"),
        default="auto",
        help="auto (the default): a GPU if there is one",
    )
    parser.add_argument("--quick", action="store_true", help="tiny models and lengths, to see that all works")
    parser.add_argument(
        "--architectures",
        default=",".join(DEFAULT),
        help="comma-separated; any roberta_… architecture of the plugin; default %(default)s",
    )
    parser.add_argument(
        "--out",
        type=Path,
        help="results file (.json); the table (.md) and the plot (.png) go beside it; default "
        "results/measured/roberta_cost_DEVICE.json, with --quick runs/roberta_cost_quick.json",
    )
    parser.add_argument(
        "--restart", action="store_true", help="measure anew instead of carrying on with --out"
    )
    parser.add_argument(
        "--time-limit",
        type=float,
        default=60,
        metavar="S",
        help="seconds a process may take before it is ended and becomes a row (default "
        "%(default)s); after a fifth of it no further step is timed",
    )
    parser.add_argument(
        "--memory-limit-gib",
        type=float,
        metavar="GIB",
        help="memory a process may take; default on a CPU: 80%% of what is free, on a GPU: all",
    )
    arguments = parser.parse_args(argv)
    known = known_architectures()
    unknown = [name for name in arguments.architectures.split(",") if name not in known]
    if unknown:
        parser.error(f"unknown architecture {', '.join(unknown)}; choose of {', '.join(known)}")
    return arguments


def settings_for(device: str, quick: bool, architectures: list[str], time_limit: float) -> dict[str, Any]:
    """What is measured; two runs with equal settings may be joined."""
    size = TINY if quick else BASE if device == "cuda" else CPU_SIZE
    plan = QUICK if quick else FULL
    return {
        "device": device,
        "size": size.as_dict(),
        **plan,
        "time_limit": time_limit,
        "architectures": architectures,
    }


def cases_of(settings: dict[str, Any]) -> list[dict[str, Any]]:
    """All processes to run: in a round lengths go up or down, and architectures take turns."""
    return [
        {"kind": "training", "architecture": name, "length": length, "round": turn}
        for turn in range(settings["rounds"])
        for length in settings["lengths"][:: -1 if turn % 2 else 1]
        for name in settings["architectures"]
    ]


def measure(case: dict[str, Any], settings: dict[str, Any], memory_limit_gib: float | None) -> dict:
    """Run one case in a process of its own."""
    limit = memory_limit_gib
    if limit is None and settings["device"] == "cpu":
        limit = 0.8 * memory_available() / 2**30
    question = {
        **case,
        **{key: settings[key] for key in ("device", "size", "threads", "steps")},
        "tokens": case["length"],  # one row
        "memory_limit": int(limit * 2**30) if limit else None,
        "enough_s": settings["time_limit"] / 5,
    }
    return {**case, **run_case(WORKER, question, settings["time_limit"])}


def run(arguments: argparse.Namespace) -> int:
    """Measure what is not measured yet; write results, table and plot; the exit status."""
    device = choose_device(arguments.device)
    names = arguments.architectures.split(",")
    settings = settings_for(device, arguments.quick, names, arguments.time_limit)
    name = "runs/roberta_cost_quick" if arguments.quick else f"results/measured/roberta_cost_{device}"
    path = (arguments.out or ROOT / f"{name}.json").resolve()
    results = {**start_or_resume(path, settings, arguments.restart), "benchmark": "roberta_cost"}
    cases = cases_of(settings)
    todo = [case for case in cases if not is_done(results, case)]
    done = len(cases) - len(todo)
    print(f"{len(cases)} cases on {device}, {done} done before; results: {shown_path(path)}")
    if todo:
        results["sessions"].append(environment(device))
    start = time.monotonic()
    for number, case in enumerate(todo, 1):
        if is_done(results, case):
            continue
        record = {
            **measure(case, settings, arguments.memory_limit_gib),
            "session": len(results["sessions"]) - 1,
        }
        results["records"] = [r for r in results["records"] if not same_case(r, case)] + [record]
        write_json(path, results)
        progress = f"[{number}/{len(todo)}, {time.monotonic() - start:.0f} s]"
        at = f"{look(case['architecture']).label}, length {case['length']:,}"
        print(f"{progress} {at}: {describe(record)}", flush=True)
    return finish(results, path)


def finish(results: dict[str, Any], path: Path) -> int:
    """Write and print table and plot; 1 if a case failed for a reason of its own."""
    text = markdown(results)
    write_atomically(path.with_suffix(".md"), text.encode())
    plot(results, path.with_suffix(".png"))
    print(f"\n{text}")
    for suffix in (".json", ".md", ".png"):
        print(f"written: {shown_path(path.with_suffix(suffix))}")
    failed = [r for r in results["records"] if r["status"] == "failed"]
    for record in failed:
        print(f"error: {record['architecture']}, {record['length']}: {record['message']}", file=sys.stderr)
    return 1 if failed else 0


def main() -> None:
    """Entry point."""
    arguments = parse_arguments()
    try:
        status = run(arguments)
    except KeyboardInterrupt:
        print("\nStopped; the same command carries on.")
        raise
    sys.exit(status)


if __name__ == "__main__":
    run_command(main)
