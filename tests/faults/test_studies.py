"""Studies killed in training, in evaluation and while record and page are written end as if undisturbed.

So do studies killed at random times after such a moment.
"""

import json
import random
import shutil
import signal
from pathlib import Path

import pytest

from tests.faults.runs import ROUNDS, at, at_update, later, longer
from tests.helpers.images import write_images
from tests.helpers.lra import write_lra

pytestmark = pytest.mark.slow

STUDIES = {
    "copy": "--preset tiny --method elu -- --train-samples 160 --eval-samples 40",
    "vit": "--preset digits_short --method lln_diag --data {images} -- --batch-size 8",
    "images": "--preset digits --method t2 --data {images} -- --batch-size 8",
    "lra": "--setting papers --task image --method lln --data {lra} -- --batch-size 8 --warmup-updates 2",
    "glue": "--task RTE --lr 0.01 --start {encoder} --data {glue} --",
}
"""By name: the words of a run of seconds, and flags of its training."""
LATEST_US = 300_000  # microseconds
FLAGS = "--log-interval 1 --max-update 6 --save-interval-updates 2 --keep-interval-updates 1"


@pytest.fixture
def words(request, study, tmp_path) -> list[str]:
    """The command line of a study on small data, without its --out."""
    if study == "glue":
        encoder, glue = (request.getfixturevalue(name) for name in ("pretrained", "glue"))
        places = {"encoder": encoder / "checkpoint_last.pt", "glue": glue}
    else:
        data = write_images(tmp_path / "images"), write_lra(tmp_path / "image", "image")
        places = dict(zip(("images", "lra"), data, strict=True))
    given = [word.format(**places) for word in STUDIES[study].split()]
    return ["study", study, "--seeds", "1", *given, *FLAGS.split()]


def moments(record: str) -> dict[str, dict[str, str]]:
    """When a study is killed; `record` is the name of the file that its run ends with."""
    return {
        "training": at_update(4),
        "a checkpoint": at("rename", path="checkpoint_last.pt"),
        "evaluation": at("write", text="evaluating checkpoint", path="train.log"),
        "the record": at("rename", path=record),
        "the page": at("rename", path="README.md"),
    }


def run(training, words: list[str], out: Path, fault: dict[str, str] | None = None) -> int:
    """The exit code of a study in `out`."""
    before = words.index("--")
    process = training.start([*words[:before], "--out", str(out), *words[before:]], fault)
    printed = process.communicate()
    if fault is None and process.returncode:
        print(*printed)
    return process.returncode


def records(out: Path) -> dict[str, dict]:
    """The records in `out` without entries that depend on machine and time."""
    found = {}
    for path in out.rglob("seed*.json"):
        record = json.loads(path.read_text())
        curves = record["training"]["curves"]
        found[str(path.relative_to(out))] = {**record, "training": curves, "environment": None}
    return found


def files(out: Path) -> set[str]:
    """The files in `out`, without the curves for TensorBoard: each start begins a new file."""
    found = (path.relative_to(out) for path in out.rglob("*") if path.is_file())
    return {str(path) for path in found if "tensorboard" not in path.parts}


def table(out: Path) -> list[list[str]]:
    """The cells of the page's table without the last two columns, seconds and seeds."""
    lines = (out / "README.md").read_text(encoding="utf-8").splitlines()
    return [line.split(" | ")[:-2] for line in lines if line.startswith("|")]


@pytest.mark.exhaustive
@pytest.mark.fault("study killed at random times")
@pytest.mark.parametrize("seed", range(ROUNDS))
@pytest.mark.parametrize("study", ["copy"])
def test_killed_at_random(training, tmp_path, study, words, seed, record_property):
    """A run that ends before it is killed begins again and is killed earlier."""
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert run(training, words, whole) == 0
    [record] = whole.rglob("seed*.json")
    chance, times = random.Random(seed), 0
    for fault in longer(*moments(record.name).values(), fast=2):
        latest = LATEST_US
        while (code := run(training, words, cut, later(fault, chance.randrange(latest)))) == 0:
            shutil.rmtree(cut)
            latest //= 2
        assert code == -signal.SIGKILL
        times += 1
    record_property("times", times)
    assert run(training, words, cut) == 0
    assert records(cut) == records(whole) and files(cut) == files(whole)
    assert table(cut) == table(whole) != []


@pytest.mark.fault("study killed")
@pytest.mark.parametrize(
    "study",
    STUDIES
    if ROUNDS > 1
    else ["copy", *(pytest.param(x, marks=pytest.mark.exhaustive) for x in ("images", "glue"))],
)
def test_killed(training, tmp_path, study, words, record_property):
    """One kill after another in one folder, then left alone."""
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert run(training, words, whole) == 0
    [record] = whole.rglob("seed*.json")
    kills = moments(record.name)
    if ROUNDS == 1 and study != "copy":  # the rest is the runner's, and the same for all studies
        kills = {"evaluation": kills["evaluation"]}
    record_property("times", len(kills))
    for moment, fault in kills.items():
        assert run(training, words, cut, fault) == -signal.SIGKILL, moment
    assert run(training, words, cut) == 0
    assert records(cut) == records(whole)
    assert files(cut) == files(whole)
