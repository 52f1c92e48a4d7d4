#!/usr/bin/env python3
"""What TransNormer costs beside a vanilla model, and the PyTorch backend beside a plain chunk of 128.

A decoding step at position 10, storages kept for the backward pass, peak memory of a training step, training
steps at lengths 512 and 1,024. With --baseline another checkout of the project is measured in the same run.
Every case runs in a process of its own on one thread, checkouts take turns, and so do the architectures
inside; times are CPU time, since the machine may do other things. Writes model_parts_cost.json and .md into
--out. Takes about ten minutes.
"""

import argparse
import statistics
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from benchmarks.cost_run import write_tables
from benchmarks.processes import run_case
from benchmarks.sizes import SMALL
from pipeline.console import Parser, add_out_dir, count, out_dir, run_command
from pipeline.errors import UserError
from pipeline.files import BENCHMARKS, ROOT, shown_path, write_json
from pipeline.methods import LANGUAGE_MODELS, TRANSNORMERS, VANILLA, Size
from pipeline.outputs import check_output, json_with
from pipeline.provenance import commit, environment
from pipeline.reports.tables import markdown_table, where

RESULT = json_with("environment", "baseline", "records")
WORKER = Path(__file__).with_name("workers") / "model_parts_worker.py"
NAMES = [VANILLA, *TRANSNORMERS]
DEEP = Size(layers=4, width=192, heads=4, vocabulary=1000)
DECODED = Size(layers=6, width=192, heads=4, vocabulary=1000)
LENGTHS = (512, 1024, 2048, 4096, 8192)
TIME_LIMIT = 600
DEFAULT = BENCHMARKS / "model_parts"


def cases(rounds: int) -> list[dict[str, Any]]:
    """What is measured in one turn of a checkout."""
    shared = {"architectures": NAMES, "rounds": rounds}
    found = [
        {"kind": "decoding", "size": DECODED.as_dict(), **shared, "rounds": 10 * rounds},
        {"kind": "kept", "size": DEEP.as_dict(), **shared, "length": 1024},
    ]
    for length in (512, 1024):
        size = SMALL.as_dict()
        found.append({"kind": "training", "size": size, **shared, "length": length, "tokens": 2048})
    for name in NAMES:
        size = SMALL.as_dict()
        found.append({"kind": "peak", "architecture": name, "size": size, "length": 1024, "tokens": 16384})
    return found + [{"kind": "backend", "length": length, "rounds": 3 * rounds} for length in LENGTHS]


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = Parser("benchmarks/model_parts_cost.py", __doc__)
    add_out_dir(parser, shown_path(DEFAULT))
    parser.add_argument("--baseline", type=Path, metavar="DIR", help="another checkout, measured too")
    parser.add_argument("--turns", type=count, default=3, help="of the checkouts; default: %(default)s")
    parser.add_argument("--rounds", type=count, default=5, help="samples a turn; default: %(default)s")
    arguments = parser.parse_intermixed_args(argv)
    if arguments.baseline and not (arguments.baseline / "user_dir").is_dir():
        raise UserError(f"{arguments.baseline} is no checkout of the project; --baseline needs one")
    return arguments


def measure(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Records of all cases, checkouts in turns."""
    checkouts = {"now": ROOT}
    if arguments.baseline:
        checkouts = {"before": arguments.baseline.resolve(), **checkouts}
    todo = [
        (turn, case, name)
        for turn in range(arguments.turns)
        for case in cases(arguments.rounds)
        for name in checkouts
        if turn == 0 or case["kind"] not in ("kept", "peak")  # these are the same every time
    ]
    records, start = [], time.monotonic()
    for number, (turn, case, name) in enumerate(todo, 1):
        found = run_case(WORKER, case, TIME_LIMIT, checkouts[name])
        if found["status"] != "ok":
            raise UserError(f"{case['kind']} of the checkout {name!r} failed: {found.get('message', '')}")
        records.append({**case, "checkout": name, "turn": turn, **found})
        passed = time.monotonic() - start
        print(f"[{number}/{len(todo)}, {passed:.0f} s] {case['kind']}, {name}", flush=True)
    return records


def ratios(records: list[dict[str, Any]]) -> dict[tuple[str, str, str], float]:
    """(measure, of what, checkout) to the figure over vanilla's, or over the plain chunk's.

    Times are compared inside a process, where the two took turns: the median over processes of the ratio of
    medians.
    """
    found, peaks = defaultdict(list), {}
    for r in records:
        checkout, place = r["checkout"], f", length {r['length']:,}" if "length" in r else ""
        if r["kind"] == "peak":
            peaks[r["architecture"], checkout] = r["kib"]
            continue
        base = "plain" if r["kind"] == "backend" else VANILLA
        values = {f"time of {r['kind']}{place}": r.get("seconds")}
        values |= {f"{r['kind']}{place}": r.get("kib"), f"operator calls of {r['kind']}": r.get("calls")}
        for measure, by_name in values.items():
            for name, value in (by_name or {}).items():
                suffix = ", backward too" if name.endswith(", backward too") else ""
                if name == base + suffix:
                    continue
                figures = [
                    statistics.median(x) if isinstance(x, list) else x
                    for x in (value, by_name[base + suffix])
                ]
                found[measure, name, checkout].append(figures[0] / figures[1])
    result = {key: statistics.median(values) for key, values in found.items()}
    for (name, checkout), kib in peaks.items():
        if name != VANILLA:
            result["peak memory, length 1,024", name, checkout] = kib / peaks[VANILLA, checkout]
    return result


def report(result: dict[str, Any]) -> str:
    """The table as Markdown."""
    found = ratios(result["records"])
    checkouts = list(dict.fromkeys(key[2] for key in found))
    rows = []
    for measure, name in dict.fromkeys(key[:2] for key in found):
        label = LANGUAGE_MODELS[name].label if name in LANGUAGE_MODELS else name.replace("torch", "backend")
        rows.append([measure, label, *(f"{found[measure, name, c]:.2f}" for c in checkouts)])
    record = result["environment"]
    caption = (
        f"Over vanilla transformer_lm, the PyTorch backend over a plain chunk of 128; CPU time. Decoding: "
        f"{DECODED}, position 10; kept: {DEEP}; training and peak: {SMALL}. {where(record, 1)}; torch "
        f"{record['versions']['torch']}; commit {record['commit']}, {record['date']}."
    )
    if result["baseline"]:
        caption += f" Before: commit {result['baseline']}."
    return f"{caption}\n\n{markdown_table(['', '', *checkouts], rows)}\n"


def main() -> None:
    """Entry point."""
    arguments = parse_arguments()
    path = (out_dir(arguments) or DEFAULT) / "model_parts_cost.json"
    check_output(path, RESULT, beside=(".md",), makes_folder=True)
    result = {
        "environment": environment("cpu"),
        "baseline": commit(arguments.baseline) if arguments.baseline else None,
        "records": measure(arguments),
    }
    write_json(path, result)
    write_tables(path, report(result))


if __name__ == "__main__":
    run_command(main)
