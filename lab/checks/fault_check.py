"""Break training runs in many ways and check that each resumes with the losses of an unbroken run.

It kills process groups and parents at random times and at exact system calls, starts a second run in the
folder, fills disks, damages checkpoints, and kills runs of several processes, studies and data preparations.
Prints "survived n of m" for each kind of fault and for all, and writes the figures to --out. The runs are
small, on the CPU, and take some minutes.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from lab.console import Parser, count, number_of
from lab.errors import UserError
from lab.files import BENCHMARKS, ROOT, check_output, check_same_result, json_with, shown_path, write_json
from lab.provenance import environment

RESULT = BENCHMARKS / "fault_check.json"
TESTS = ROOT / "tests" / "faults"


def parse(words: Sequence[str]) -> argparse.Namespace:
    parser = Parser("scripts/lab.sh check faults", __doc__)
    parser.add_argument(
        "--rounds",
        type=count,
        default=6,
        metavar="N",
        help="runs killed at five random times each, in saves and between them, and studies killed at "
        "random times; 1: only a few cases of each kind (default: 6)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=RESULT,
        metavar="FILE",
        help=f"where the JSON goes (default: {shown_path(RESULT)})",
    )
    return parser.parse_args(words)


def run_tests(rounds: int, report: Path) -> None:
    """Run the fault tests, which pytest shows on the terminal; its report goes to `report` (JUnit's XML)."""
    command = [sys.executable, "-m", "pytest", "-n", "2", "-v", f"--junitxml={report}", str(TESTS)]
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # also in the record
    subprocess.run(command, cwd=ROOT, env={**os.environ, "FAULT_ROUNDS": str(rounds)})
    if not report.is_file():
        raise UserError("the fault tests could not be run; what pytest says is above")


def counts(report: Path) -> dict[str, dict[str, Any]]:
    """Per kind of fault: the number made, the number survived, and the tests that failed.

    If a test passes, all of its faults count as survived; otherwise none does.
    """
    kinds: dict[str, dict[str, Any]] = defaultdict(lambda: {"broken": 0, "survived": 0, "failed": []})
    for case in ElementTree.parse(report).iter("testcase"):
        if case.find("skipped") is not None:
            continue
        found = {entry.get("name"): entry.get("value") for entry in case.iter("property")}
        times = int(found.get("times", 1))
        kind = kinds[found.get("fault", "not started")]
        kind["broken"] += times
        if case.find("failure") is None and case.find("error") is None:
            kind["survived"] += times
        else:
            kind["failed"].append(case.get("name"))
    return dict(sorted(kinds.items()))


def main(options: argparse.Namespace) -> None:
    """Run the tests and count."""
    check_output(options.out, json_with("rounds", "faults"), makes_folder=True)
    check_same_result(options.out, {"rounds": options.rounds})
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        run_tests(options.rounds, report)
        kinds = counts(report)
    if not kinds:
        raise UserError("no fault test was run; what pytest says is above")
    for kind, result in kinds.items():
        print(f"{kind}: survived {result['survived']} of {result['broken']}")
    tried, survived = (sum(result[key] for result in kinds.values()) for key in ("broken", "survived"))
    print(f"{number_of(tried, 'faults')} tried, {survived:,} survived")
    write_json(options.out, {"rounds": options.rounds, "faults": kinds, **environment("cpu")})
    print(f"written: {shown_path(options.out)}")
    if any(result["failed"] for result in kinds.values()):
        raise UserError("not every run survived; the names of those that did not are in the JSON")
