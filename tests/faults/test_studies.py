"""Studies killed in training, in evaluation and while record and page are written end as if undisturbed."""

import json
import signal
from pathlib import Path

import pytest

from tests.faults.runs import at, at_update

pytestmark = [pytest.mark.slow, pytest.mark.fault("study killed")]

STUDIES = {
    "copy": "copy --preset tiny --method elu -- --train-samples 160 --eval-samples 40 --log-interval 1 "
    "--max-update 6 --save-interval-updates 2 --keep-interval-updates 1",
}
"""By name: the words of a run of seconds."""
MOMENTS = {
    "training": at_update(4),
    "a checkpoint": at("rename", path="checkpoint_last.pt"),
    "evaluation": at("write", text='"peak_memory"', path="train.log"),
    "the record": at("rename", path="seed1.json"),
    "the page": at("rename", path="README.md"),
}


def run(training, study: str, out: Path, fault: dict[str, str] | None = None) -> int:
    """The exit code of a study in `out`."""
    before, _, flags = STUDIES[study].partition(" -- ")
    words = ["study.study", *before.split(), "--out", str(out), "--", *flags.split()]
    process = training.start(words, fault)
    printed = process.communicate()
    if fault is None and process.returncode:
        print(*printed)
    return process.returncode


def records(out: Path) -> dict[str, dict]:
    """The records in `out`, less what is of the machine and the moment."""
    found = {}
    for path in out.rglob("seed*.json"):
        record = json.loads(path.read_text())
        curves = record["training"]["curves"]
        found[str(path.relative_to(out))] = {**record, "training": curves, "environment": None}
    return found


@pytest.mark.parametrize("study", STUDIES)
def test_killed(training, tmp_path, study, record_property):
    """One kill after another in one folder, then left alone."""
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert run(training, study, whole) == 0
    record_property("times", len(MOMENTS))
    for moment, fault in MOMENTS.items():
        assert run(training, study, cut, fault) == -signal.SIGKILL, moment
    assert run(training, study, cut) == 0
    assert records(cut) == records(whole) and records(whole)
    assert (cut / "README.md").is_file()
