#!/usr/bin/env python3
"""What the loss over a large vocabulary costs: fairseq's cross_entropy beside chunked_cross_entropy.

Time and peak memory of forward and backward pass by vocabulary, losses in turns; on a GPU in bfloat16, and
Liger's and Apple's kernels, too, where they are installed. With --text also real updates of
configs/wikitext103/transnormer_t1.yaml on that text, its dictionary padded to WikiText-103's 267,744 words.
The plain loss takes 16 GiB of memory there. Writes loss_cost_DEVICE.json and .md into --out; the same
command again resumes. Takes about fifteen minutes on two cores.
"""

import argparse
import time
from pathlib import Path
from typing import Any

from benchmarks.cost_run import choose_device, same_case, write_tables
from benchmarks.processes import run_case
from pipeline.console import Parser, add_device, add_out_dir, count, out_dir, run_command
from pipeline.errors import UserError
from pipeline.files import BENCHMARKS, read_json, shown_path, write_json
from pipeline.outputs import check_output, json_with
from pipeline.provenance import check_same_machine, environment, memory_available
from pipeline.reports.costs.loss_cost import markdown

RESULT = json_with("records")
WORKER = "benchmarks.workers.loss_cost_worker"
CONFIG = "configs/wikitext103/transnormer_t1.yaml"
VOCABULARIES = (4000, 33_280, 50_264, 267_744)
TIME_LIMIT = 3600


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = Parser("benchmarks/loss_cost.py", __doc__)
    add_device(parser)
    add_out_dir(parser, shown_path(BENCHMARKS))
    sizes = ", ".join(f"{size:,}" for size in VOCABULARIES)
    parser.add_argument(
        "--vocabulary",
        type=count,
        nargs="+",
        default=VOCABULARIES,
        metavar="V",
        help=f"vocabulary sizes to measure; default: {sizes}",
    )
    parser.add_argument(
        "--tokens", type=count, default=4096, metavar="N", help="tokens of a batch; default: %(default)s"
    )
    parser.add_argument(
        "--width", type=count, default=512, metavar="D", help="width of the features; default: %(default)s"
    )
    parser.add_argument(
        "--steps", type=count, default=3, metavar="N", help="timed steps per loss; default: %(default)s"
    )
    parser.add_argument(
        "--restart", action="store_true", help="measure everything again, not only what --out lacks"
    )
    parser.add_argument(
        "--text", type=Path, metavar="FILE", help="also time updates on this text, such as wiki.valid.tokens"
    )
    arguments = parser.parse_intermixed_args(argv)
    if arguments.text and not arguments.text.is_file():
        raise UserError(f"no text file {arguments.text}; name WikiText-103's wiki.valid.tokens, unpacked")
    return arguments


def cases(arguments: argparse.Namespace, device: str) -> list[dict[str, Any]]:
    """What is measured, in this order."""
    from benchmarks.workers.loss_cost_worker import available  # here, since fairseq logs when it is imported

    shared = {"tokens": arguments.tokens, "width": arguments.width, "steps": arguments.steps}
    losses = ["products", *available(device)]
    found: list[dict[str, Any]] = [
        {"kind": "losses", **shared, "vocabulary": vocabulary, "losses": losses}
        for vocabulary in arguments.vocabulary
    ]
    if arguments.text:
        update = {"kind": "update", "config": CONFIG, "text": str(arguments.text.absolute())}
        update["vocabulary"] = max(arguments.vocabulary)
        for criterion in ("chunked_cross_entropy", "cross_entropy"):
            found.append({**update, "criterion": criterion, "updates": 2})
    return found


def measure(todo: list[dict[str, Any]], device: str, path: Path) -> dict[str, Any]:
    """The results in `path` with a record for each case, written after every one.

    A case that needs more than 90 % of the free memory says so. Raises UserError if `path` holds figures of
    another machine.
    """
    result = read_json(path) if path.is_file() else {"records": []}
    check_same_machine(path, [record.get("environment") for record in result["records"]], device)
    start = time.monotonic()
    for number, case in enumerate(todo, 1):
        shown = {**case, **({"text": Path(case["text"]).name} if "text" in case else {})}
        if any(same_case(record, shown) for record in result["records"]):
            continue
        limit = int(0.9 * memory_available()) if device == "cpu" else None
        found = run_case(WORKER, {**case, "device": device, "memory_limit": limit}, TIME_LIMIT)
        if found["status"] == "failed":
            raise UserError(f"{case} failed: {found['message']}")
        about = {"memory_limit": limit, "environment": environment(device)}
        result["records"].append({**shown, **about, **found})
        write_json(path, result)
        what = f"{case.get('criterion', 'losses')}, {case['vocabulary']:,} words"
        passed = time.monotonic() - start
        print(f"[{number}/{len(todo)}, {passed:.0f} s] {what}: {found['status']}", flush=True)
    return result


def main() -> None:
    """Entry point."""
    arguments = parse_arguments()
    device = choose_device(arguments.device)
    path = (out_dir(arguments) or BENCHMARKS) / f"loss_cost_{device}.json"
    check_output(path, RESULT, [arguments.text], (".md",), makes_folder=True)
    if arguments.restart:
        path.unlink(missing_ok=True)
    result = measure(cases(arguments, device), device, path)
    write_tables(path, markdown(result))


if __name__ == "__main__":
    run_command(main)
