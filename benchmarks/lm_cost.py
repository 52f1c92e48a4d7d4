#!/usr/bin/env python3
"""What the language models cost: time and memory of training, time of decoding a token.

Training is measured at several lengths with a constant number of tokens a batch, decoding at
several positions. Every architecture and length runs in processes of its own, which take turns, so
that a slow minute of the machine meets all of them; memory that runs out or a case that takes too
long is a row of the table. What is measured is kept after every case: run the same command again
and it carries on. On two cores it takes about ten minutes, and the machine should do nothing else.
"""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.architectures import ARCHITECTURES, BASE, MAIN, SMALL, TINY  # noqa: E402
from benchmarks.common import CommandLine, environment, read_json, shown_path, write_json  # noqa: E402
from benchmarks.lm_cost_report import markdown, plot  # noqa: E402
from benchmarks.memory import memory_available  # noqa: E402
from benchmarks.processes import run_case  # noqa: E402
from scripts.command import run_command, write_atomically  # noqa: E402
from user_dir.errors import UserError  # noqa: E402

WORKER = "benchmarks.lm_cost_worker"
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
        default=",".join(MAIN),
        help="comma-separated, of %(default)s (the default)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        help="results file (.json); the table (.md) and the plot (.png) go beside it; default "
        "results/measured/lm_cost_DEVICE.json, with --quick runs/lm_cost_quick.json",
    )
    parser.add_argument(
        "--restart", action="store_true", help="measure anew instead of carrying on with --out"
    )
    parser.add_argument(
        "--time-limit",
        type=float,
        default=150,
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
    unknown = set(arguments.architectures.split(",")) - set(ARCHITECTURES)
    if unknown:
        wrong, known = ", ".join(sorted(unknown)), ", ".join(ARCHITECTURES)
        parser.error(f"unknown architecture {wrong}; choose of {known}")
    return arguments


def choose_device(asked: str) -> str:
    """The device `asked` for; raises UserError for a GPU that is not there."""
    if asked == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda was asked for, but torch sees no GPU; use --device cpu")
    return ("cuda" if torch.cuda.is_available() else "cpu") if asked == "auto" else asked


def settings_for(device: str, quick: bool, architectures: list[str]) -> dict[str, Any]:
    """What is measured; two runs with equal settings may be joined."""
    size = TINY if quick else BASE if device == "cuda" else SMALL
    plan = QUICK if quick else FULL
    return {"device": device, "size": size.as_dict(), **plan, "architectures": architectures}


def cases_of(settings: dict[str, Any]) -> list[dict[str, Any]]:
    """All processes to run: in a round lengths go up or down, and architectures take turns."""
    cases = []
    for turn in range(settings["rounds"]):
        for length in settings["lengths"][:: -1 if turn % 2 else 1]:
            cases += [
                {"kind": "training", "architecture": name, "length": length, "round": turn}
                for name in settings["architectures"]
            ]
    cases += [{"kind": "decoding", "architecture": name, "round": 0} for name in settings["architectures"]]
    return cases


def start_or_resume(path: Path, settings: dict[str, Any], restart: bool) -> dict[str, Any]:
    """The results so far; raises UserError if `path` holds a run with other settings."""
    fresh = {"benchmark": "lm_cost", "settings": settings, "sessions": [], "records": []}
    if restart or not path.exists():
        return fresh
    results = read_json(path)
    if not isinstance(results, dict) or results.get("settings") != settings:
        raise UserError(
            f"{shown_path(path)} holds a run with other settings; name another file with --out, "
            "or measure anew with --restart"
        )
    return results


def is_done(results: dict[str, Any], case: dict[str, Any]) -> bool:
    """Whether `case` has a record, or an earlier round has shown that it cannot be measured."""
    same = {key: value for key, value in case.items() if key != "round"}
    for record in results["records"]:
        if all(record.get(key) == value for key, value in same.items()) and (
            record["round"] == case["round"] or record["status"] in ("out of memory", "time limit")
        ):
            return True
    return False


def measure(case: dict[str, Any], settings: dict[str, Any], arguments: argparse.Namespace) -> dict:
    """Run one case in a process of its own."""
    limit = arguments.memory_limit_gib
    if limit is None and settings["device"] == "cpu":
        limit = 0.8 * memory_available() / 2**30
    shared = ("device", "size", "tokens", "positions", "visits", "threads")
    question = {
        **case,
        **{key: settings[key] for key in shared},
        "steps": settings["decoding_steps" if case["kind"] == "decoding" else "steps"],
        "memory_limit": int(limit * 2**30) if limit else None,
        "enough_s": arguments.time_limit / 5,
    }
    return {**case, **run_case(WORKER, question, arguments.time_limit)}


def describe(record: dict[str, Any]) -> str:
    """A record in a few words, for the progress lines."""
    if record["status"] != "ok":
        return " ".join(filter(None, [record["status"], record.get("message")]))
    if record["kind"] == "training":
        seconds = sorted(record["step_seconds"])
        peak = record["peak_bytes"] / 2**20
        return f"{seconds[len(seconds) // 2]:.2f} s a step, peak {peak:,.0f} MiB"
    times = (f"{p}: {1e3 * sorted(s)[len(s) // 2]:.2f}" for p, s in record["token_seconds"].items())
    return "ms a token at " + ", ".join(times)


def run(arguments: argparse.Namespace) -> int:
    """Measure what is not measured yet; write results, table and plot; the exit status."""
    device = choose_device(arguments.device)
    settings = settings_for(device, arguments.quick, arguments.architectures.split(","))
    name = "runs/lm_cost_quick" if arguments.quick else f"results/measured/lm_cost_{device}"
    path = (arguments.out or ROOT / f"{name}.json").resolve()
    results = start_or_resume(path, settings, arguments.restart)
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
        record = {**measure(case, settings, arguments), "session": len(results["sessions"]) - 1}
        results["records"] = [r for r in results["records"] if not same_case(r, case)] + [record]
        write_json(path, results)
        at = f"length {case['length']:,}" if "length" in case else "decoding"
        label = ARCHITECTURES[case["architecture"]].label
        progress = f"[{number}/{len(todo)}, {time.monotonic() - start:.0f} s]"
        print(f"{progress} {label}, {at}: {describe(record)}", flush=True)
    return finish(results, path)


def same_case(record: dict[str, Any], case: dict[str, Any]) -> bool:
    """Whether `record` answers `case`."""
    return all(record.get(key) == value for key, value in case.items())


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
        place = record.get("length", "decoding")
        print(f"error: {record['architecture']}, {place}: {record['message']}", file=sys.stderr)
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
