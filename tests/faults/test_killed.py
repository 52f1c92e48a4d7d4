"""Kills at exact system calls, the parent alone, and a second run in the same folder."""

import fcntl
import signal

import pytest

from pipeline.training.run_lock import NAME
from tests.faults.runs import at, at_update, same_losses


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(at("write", "half", path="checkpoint_1_10.pt.tmp"), id="half a checkpoint"),
        pytest.param(at("rename", path="checkpoint_last.pt", nth=2), id="before the copy to last"),
    ],
)
def test_killed_while_saving(training, unbroken, tmp_path, fault):
    assert training.run(tmp_path, fault=fault) == [-signal.SIGKILL]
    assert training.run(tmp_path) == [0]
    assert same_losses(tmp_path, unbroken)


@pytest.mark.slow
def test_parent_killed_alone(training, unbroken, tmp_path):
    """The training it started ends with it: the lock, which both hold, is free at once."""
    assert training.run(tmp_path, fault=at_update(12, "parent")) == [-signal.SIGKILL]
    with (tmp_path / NAME).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
    assert '"num_updates": "20"' not in (tmp_path / "train.log").read_text()
    assert training.run(tmp_path) == [0]
    assert same_losses(tmp_path, unbroken)
