"""A run of several processes resumes, also with another number of processes."""

import fcntl

import pytest

from pipeline.outputs import LOCK
from tests.faults.runs import ROUNDING, at_update, longer, losses, same_losses

# How many processes are killed after which update; the last one resumes and ends the run.
KILLED = longer((1, 7), (2, 12), (2, 17), (1, 22), (2, 26), fast=2)


@pytest.mark.slow
@pytest.mark.fault("several processes killed")
def test_killed_and_resumed(training, unbroken, tmp_path, record_property):
    record_property("times", len(KILLED))
    for processes, update in KILLED:
        assert set(training.run(tmp_path, processes=processes, fault=at_update(update))) == {-9}
    assert training.run(tmp_path) == [0]
    assert same_losses(tmp_path, unbroken, ROUNDING)
    again = [update for update, values in losses(tmp_path).items() if len(values) > 1]
    assert again == list(longer(6, 11, 16, 21, fast=2))


@pytest.mark.slow
@pytest.mark.fault("one of several processes killed")
def test_one_killed(training, unbroken, tmp_path, record_property):
    """The command says so in one sentence, and the other process does not outlive it."""
    updates = longer(7, 12, 26)
    record_property("times", len(updates))
    for update in updates:
        broken = training.start(training.command(tmp_path, "--cpu-processes", "2"), at_update(update, "self"))
        _, said = broken.communicate()
        assert broken.returncode == 1
        assert said == f"error: fairseq-train was ended by SIGKILL (log: {tmp_path / 'train.log'})\n"
        with (tmp_path / LOCK).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert training.run(tmp_path) == [0]
    assert same_losses(tmp_path, unbroken, ROUNDING)
