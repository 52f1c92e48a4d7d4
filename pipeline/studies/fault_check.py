"""How many broken training runs resume, by kind of fault (the command behind fault_check.sh)."""

import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from pipeline.commands.studies.fault_check import parse
from pipeline.errors import UserError
from pipeline.files import ROOT, check_writable, shown_path, write_json
from pipeline.provenance import environment

TESTS = ROOT / "tests" / "faults"


def run_tests(rounds: int, report: Path) -> None:
    """Run the fault tests, which pytest shows on the terminal; its report goes to `report` (JUnit's XML)."""
    command = [sys.executable, "-m", "pytest", "-n", "2", "-v", f"--junitxml={report}", str(TESTS)]
    threads = os.environ.get("OMP_NUM_THREADS", "1")
    variables = {"FAULT_ROUNDS": str(rounds), "OMP_NUM_THREADS": threads}
    subprocess.run(command, cwd=ROOT, env={**os.environ, **variables})
    if not report.is_file():
        raise UserError("the fault tests could not be run; what pytest says is above")


def counts(report: Path) -> dict[str, dict[str, Any]]:
    """Of each kind of fault how many were made, how many survived, and the tests that failed.

    The faults of one test have survived if it passes, else none of them has.
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


def main() -> None:
    """Entry point."""
    options = parse(sys.argv[1:])
    check_writable(options.out, makes_folder=True)
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        run_tests(options.rounds, report)
        kinds = counts(report)
    if not kinds:
        raise UserError("no fault test was run; what pytest says is above")
    for kind, result in kinds.items():
        print(f"{kind}: survived {result['survived']} of {result['broken']}")
    write_json(options.out, {"rounds": options.rounds, "faults": kinds, **environment("cpu")})
    print(f"written: {shown_path(options.out)}")
    if any(result["failed"] for result in kinds.values()):
        raise UserError("not every run survived; the names of those that did not are in the JSON")
