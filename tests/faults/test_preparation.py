"""Data preparation killed at system calls: running it again gives the bytes of an undisturbed one."""

from pathlib import Path

import pytest

from tests.faults.runs import ROUNDS, at
from tests.helpers.encoders import write_text
from tests.helpers.prepared import contents

pytestmark = [
    pytest.mark.slow,
    pytest.mark.fault("data preparation killed"),
    pytest.mark.skipif(ROUNDS == 1, reason="only with scripts/lab.sh check faults --rounds 2 or more"),
]

KILLS = {
    "before the text": at("write", path="train.txt"),
    "half of the vocabulary": at("write", "half", path="dict.txt"),
    "half of an index": at("write", "half", path="train.idx"),
    "before the last index": at("write", path="test.idx"),
    "half of the record": at("write", "half", path="preparation.json"),
    "before the folder is renamed": at("rename", path="prepared"),
}


def prepare(training, source: Path, dest: Path, fault: dict[str, str] | None = None) -> int:
    """data-prep/roberta.sh on a text; the exit code."""
    words = ["data-prep/roberta.sh", "text", "--from", str(source), "--dest", str(dest)]
    words += ["--tokenizer", "sentencepiece", "--vocab-size", "340"]
    process = training.start(words, fault)
    process.communicate()
    return process.returncode


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    write_text(folder)
    return folder


@pytest.fixture(scope="module")
def undisturbed(training, text, tmp_path_factory) -> dict[str, bytes]:
    dest = tmp_path_factory.mktemp("data") / "prepared"
    assert prepare(training, text, dest) == 0
    return contents(dest)


@pytest.mark.parametrize("kill", KILLS)
def test_killed(training, text, undisturbed, tmp_path, kill):
    dest = tmp_path / "prepared"
    assert prepare(training, text, dest, KILLS[kill]) != 0
    assert not dest.exists()
    assert prepare(training, text, dest) == 0
    assert contents(dest) == undisturbed
