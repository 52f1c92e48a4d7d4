"""Kills at random moments and at exact system calls, and of the parent alone."""

import fcntl
import random
import signal

import pytest

from pipeline.training.run_lock import NAME
from tests.faults.runs import ROUNDS, at, at_update, longer, same_losses

pytestmark = pytest.mark.slow

AT_SYSTEM_CALLS = longer(
    pytest.param(at("write", "half", path="checkpoint_1_10.pt.tmp"), id="half a checkpoint"),
    pytest.param(at("rename", path="checkpoint_last.pt", nth=2), id="before the copy to last"),
    pytest.param(at("write", "half", path="checkpoint_1_5.pt.tmp"), id="half of the first checkpoint"),
    pytest.param(at("rename", path="checkpoint_1_5.pt"), id="before the first checkpoint"),
    pytest.param(at("rename", path="checkpoint_last.pt"), id="before the first copy to last"),
    pytest.param(at("write", "half", path="checkpoint_last.pt.tmp", nth=2), id="half a copy"),
    pytest.param(at("rename", path="checkpoint_best.pt", nth=2), id="before the copy to best"),
    pytest.param(at("fsync", path="checkpoint_1_10.pt.tmp"), id="before the checkpoint is on the disk"),
    pytest.param(at("unlink", path="checkpoint_1_5.pt"), id="before the old checkpoint is removed"),
)


@pytest.mark.fault("process group killed at a random moment")
@pytest.mark.parametrize("seed", range(ROUNDS))
def test_killed_at_random(training, unbroken, tmp_path, seed):
    """Any line of the log may be the last."""
    lines = (unbroken / "train.log").read_text().count("\n")
    fault = at("write", path="train.log", nth=random.Random(seed).randrange(1, lines))
    assert training.run(tmp_path, fault=fault) == [-signal.SIGKILL]
    assert training.run(tmp_path) == [0]
    assert same_losses(tmp_path, unbroken)


@pytest.mark.fault("process group killed at a system call")
@pytest.mark.parametrize("fault", AT_SYSTEM_CALLS)
def test_killed_while_saving(training, unbroken, tmp_path, fault):
    assert training.run(tmp_path, fault=fault) == [-signal.SIGKILL]
    assert training.run(tmp_path) == [0]
    assert same_losses(tmp_path, unbroken)
    assert {path.name for path in tmp_path.glob("checkpoint*")} == {
        path.name for path in unbroken.glob("checkpoint*")
    }


@pytest.mark.fault("parent killed alone")
@pytest.mark.parametrize("update", longer(12, 23, 6, 17)[: 1 if ROUNDS == 1 else None])
def test_parent_killed_alone(training, unbroken, tmp_path, update):
    """The training it started ends with it: the lock, which both hold, is free at once."""
    assert training.run(tmp_path, fault=at_update(update, "parent")) == [-signal.SIGKILL]
    with (tmp_path / NAME).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
    assert '"num_updates": "28"' not in (tmp_path / "train.log").read_text()
    assert training.run(tmp_path) == [0]
    assert same_losses(tmp_path, unbroken)


@pytest.mark.fault("parent asked to end (SIGTERM)")
def test_parent_asked_to_end(training, unbroken, tmp_path):
    assert training.run(tmp_path, fault=at_update(12, "ask")) == [128 + signal.SIGTERM]
    with (tmp_path / NAME).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the training has ended before its parent
    assert training.run(tmp_path) == [0]
    assert same_losses(tmp_path, unbroken)
