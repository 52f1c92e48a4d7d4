"""Kills at random moments and at exact system calls, of the parent alone, and of several processes.

A run of several processes resumes, also with another number of processes.
"""

import fcntl
import random
import signal

import pytest
import torch

from conventions import LOCK, STOPPED
from lab.run.checkpoint import read_checkpoint
from tests.faults.runs import ROUNDING, ROUNDS, at, at_update, check_resumes, later, longer, losses

pytestmark = pytest.mark.slow

SAVES = (5, 10, 15, 20)  # updates after which `training` saves, long before its end
KILLS = 1 if ROUNDS == 1 else len(SAVES)  # of one run, at random times
SAVE_US, UPDATE_US = 50_000, 20_000  # microseconds: longer than a save with its copies, than an update
SYSTEM_CALLS = {
    "the first checkpoints": [
        at("write", "half", path="checkpoint_1_5.pt.tmp"),
        at("rename", path="checkpoint_1_5.pt"),
        at("rename", path="checkpoint_last.pt"),
        at("unlink", path="checkpoint_1_5.pt"),
    ],
    "a new checkpoint": [
        at("fsync", path="checkpoint_1_10.pt.tmp"),
        at("write", "half", path="checkpoint_1_10.pt.tmp"),
        at("rename", path="checkpoint_1_10.pt"),
        at("rename", path="checkpoint_last.pt"),
    ],
    "its copies": [
        at("write", "half", path="checkpoint_last.pt.tmp", nth=2),
        at("rename", path="checkpoint_best.pt"),
        at("fsync", path="checkpoint_last.pt.tmp"),
        at("rename", path="checkpoint_last.pt", nth=2),
    ],
}


# How many processes are killed after which update; the last one resumes and ends the run.
KILLED = longer((1, 7), (2, 12), (2, 17), (1, 22), (2, 26), fast=2)


def in_a_save(save: int, chance: random.Random) -> dict[str, str]:
    """A random time from the first byte of the checkpoint of update 5, 10, ... on."""
    return later(at("write", path=f"_{save}.pt.tmp"), chance.randrange(SAVE_US))


def between_saves(save: int, chance: random.Random) -> dict[str, str]:
    """A random time after one of the four updates before a save."""
    return later(at_update(chance.randrange(save - 4, save)), chance.randrange(UPDATE_US))


@pytest.mark.parametrize(
    "when",
    [
        pytest.param(in_a_save, marks=pytest.mark.fault("killed at random times of a save")),
        pytest.param(between_saves, marks=pytest.mark.fault("killed at random times between checkpoints")),
    ],
)
@pytest.mark.parametrize("seed", range(ROUNDS))
def test_killed_at_random(training, unbroken, tmp_path, when, seed, record_property):
    """Again and again, until it is left alone; the weights it ends with are the same bit for bit."""
    record_property("times", KILLS)
    chance = random.Random(seed)
    for save in sorted(chance.sample(SAVES, KILLS)):
        assert training.run(tmp_path, fault=when(save, chance)) == [-signal.SIGKILL]
    check_resumes(training, tmp_path, unbroken)
    for name in ("checkpoint_last.pt", "checkpoint_best.pt"):
        ours, theirs = (read_checkpoint(folder / name) for folder in (tmp_path, unbroken))
        assert ours.updates == theirs.updates
        assert all(torch.equal(value, theirs.weights[key]) for key, value in ours.weights.items())


@pytest.mark.fault("killed at system calls")
@pytest.mark.parametrize("calls", longer(*SYSTEM_CALLS))
def test_killed_while_saving(training, unbroken, tmp_path, calls, record_property):
    """One after another, each as the run resumes from the state after the previous kill."""
    record_property("times", len(SYSTEM_CALLS[calls]))
    for fault in SYSTEM_CALLS[calls]:
        assert training.run(tmp_path, fault=fault) == [-signal.SIGKILL], fault
    check_resumes(training, tmp_path, unbroken)
    assert {path.name for path in tmp_path.glob("checkpoint*")} == {
        path.name for path in unbroken.glob("checkpoint*")
    }


@pytest.mark.fault("parent killed alone")
def test_parent_killed_alone(training, unbroken, tmp_path, record_property):
    """The training it started ends with it: the lock, which both hold, is free at once."""
    updates = longer(12, 17, 23, 26)
    record_property("times", len(updates))
    for update in updates:
        assert training.run(tmp_path, fault=at_update(update, "parent")) == [-signal.SIGKILL]
        with (tmp_path / LOCK).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
        assert '"num_updates": "28"' not in (tmp_path / "train.log").read_text()
    check_resumes(training, tmp_path, unbroken)


@pytest.mark.fault("SIGTERM to the parent")
def test_parent_asked_to_end(training, unbroken, tmp_path, record_property):
    """All processes save at the same update and end; any number of processes resumes there."""
    asked = longer((2, 12), (1, 19), (2, 24))
    record_property("times", len(asked))
    for processes, update in asked:
        fault = at_update(update, "ask")
        assert training.run(tmp_path, "--cpu-processes", str(processes), fault=fault) == [STOPPED]
        with (tmp_path / LOCK).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the training has ended before its parent
        assert update <= read_checkpoint(tmp_path / "checkpoint_last.pt").updates <= update + 2
    check_resumes(training, tmp_path, unbroken, ROUNDING)
    assert all(len(values) == 1 for values in losses(tmp_path).values())  # no update is done again


@pytest.mark.fault("several processes killed")
def test_killed_and_resumed(training, unbroken, tmp_path, record_property):
    record_property("times", len(KILLED))
    for processes, update in KILLED:
        assert set(training.run(tmp_path, processes=processes, fault=at_update(update))) == {-9}
    check_resumes(training, tmp_path, unbroken, ROUNDING)
    again = [update for update, values in losses(tmp_path).items() if len(values) > 1]
    assert again == list(longer(6, 11, 16, 21, fast=2))


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
    check_resumes(training, tmp_path, unbroken, ROUNDING)
