"""Where training resumes: refused checkpoints, finished runs, and runs after Ctrl-C."""

import fcntl
import signal
from types import SimpleNamespace

import pytest
import torch
from fairseq.data.iterators import CountingIterator

from conventions import LOCK
from tests.helpers import forked
from tests.helpers.cases import exhaustive
from tests.helpers.logs import losses
from tests.models.conftest import run_in_two_processes, signalled, train_in_two_processes
from user_dir.fairseq_patches.data import groups_left, keep_place_in_epoch, place_in_epoch

T2 = ("--arch", "transnormer_t2")


def last_line(done) -> str:
    return (done.stdout + done.stderr).strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("before", "processes", "batches", "done"),
    [
        ({"iterations_in_epoch": 3, "processes": 1, "batches": 12}, 1, 12, 3),
        ({"iterations_in_epoch": 3, "processes": 1, "batches": 12}, 2, 12, 1),  # the third is seen again
        ({"iterations_in_epoch": 3, "processes": 2, "batches": 12}, 1, 12, 6),
        ({"iterations_in_epoch": 3, "processes": 2, "batches": 12}, 4, 12, 1),
        ({"iterations_in_epoch": 3, "processes": 1, "batches": 12}, 1, 24, 6),
        ({"iterations_in_epoch": 3, "processes": 1, "batches": 12}, 1, 6, 1),
        ({"iterations_in_epoch": 3}, 2, 12, 3),  # of fairseq without the plugin
        ({}, 2, 12, 0),
    ],
)
def test_the_place_in_an_epoch_skips_no_batch(before, processes, batches, done):
    iterator = SimpleNamespace(num_shards=processes, frozen_batches=[[0]] * batches)
    assert keep_place_in_epoch(iterator, before)["iterations_in_epoch"] == done
    assert place_in_epoch(iterator) == {"processes": processes, "batches": batches}


@pytest.mark.parametrize(
    ("done", "skip_rest", "groups", "left"),
    [(0, False, 3, 7), (1, False, 2, 6), (2, False, 2, 5), (0, True, 2, 6), (2, True, 1, 3), (5, True, 0, 0)],
)
def test_updates_left_in_an_epoch_of_seven_batches_by_three(done, skip_rest, groups, left):
    batches = CountingIterator(range(7))
    for _ in range(done):
        next(batches)
    assert groups_left(batches, 3, skip_rest) == groups
    assert len(list(batches)) == left


def test_another_model_is_not_resumed(commands, trained, tmp_path):
    """T1 and T2 have weights of the same shapes that mean something else."""
    folder, _ = trained
    before = (folder / "checkpoint_last.pt").read_bytes()
    start = ("--restore-file", str(folder / "checkpoint_last.pt"))
    for save_dir, words in (
        (folder, T2),
        (tmp_path, (*T2, *start)),
        (tmp_path, (*T2, *start, "--reset-optimizer")),
        (tmp_path, (*T2, "--finetune-from-model", start[1])),
        (folder, ("--dropout", "0.2")),
        (folder, ("--dropout", "0.1", "--max-update", "12", "--seed", "9")),  # the run is finished
    ):
        done = forked.run(commands.train(save_dir, "--max-update", "14", *words))
        assert done.returncode == 1 and "--allow-changed" in last_line(done), last_line(done)
    assert (folder / "checkpoint_last.pt").read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} <= {LOCK, "data.json"}


def test_two_runs_do_not_share_a_folder(commands, tmp_path):
    command = commands.train(tmp_path, "--max-update", "1", "--no-epoch-checkpoints")
    with (tmp_path / LOCK).open("w") as held:
        held.write("process 7 on node")
        held.flush()
        fcntl.flock(held, fcntl.LOCK_EX)
        refused = forked.run(command)
        assert refused.returncode == 1 and "Traceback" not in refused.stdout + refused.stderr
        assert last_line(refused).startswith(f"error: {tmp_path} is in use by process 7 on node; wait until")
        commands.run(*command, "--no-save")
    commands.run(*command)
    assert (tmp_path / LOCK).read_text().startswith("process ")


def test_what_may_change_is_named(commands, trained, tmp_path):
    start = ("--restore-file", str(trained[0] / "checkpoint_last.pt"), "--reset-optimizer")
    refused = forked.run(commands.train(tmp_path, "--max-update", "1", *T2, *start))
    flag = last_line(refused).split()[-1]
    assert set(flag.split(",")) == {"arch", "diag_activation", "norm_feature_map"}
    commands.run(*commands.train(tmp_path, "--max-update", "1", *T2, *start, "--allow-changed", flag))
    # Another dropout is not another model where training starts with its weights only.
    other = commands.train(tmp_path / "other", "--max-update", "1", "--dropout", "0.3", *start)
    commands.run(*other)


def test_a_run_without_the_optimizers_state_does_not_start_again(commands, trained, tmp_path):
    state = torch.load(trained[0] / "checkpoint_last.pt")
    torch.save({**state, "last_optimizer_state": None}, tmp_path / "checkpoint_last.pt")
    refused = forked.run(commands.train(tmp_path, "--max-update", "14", "--dropout", "0.1"))
    assert refused.returncode == 1 and "lacks the state of the optimizer" in last_line(refused)


@pytest.mark.parametrize(
    "limit",
    [
        ("--max-update", "3"),
        exhaustive(("--max-epoch", "1")),
        ("--patience", "2", "--validate-interval-updates", "1", "--maximize-best-checkpoint-metric"),
    ],
    ids=["updates", "epochs", "patience"],
)
def test_a_finished_run_trains_nothing(limit, commands, tmp_path):
    command = commands.train(tmp_path / "run", *limit)
    updates = max(losses(commands.run(*command)))

    def saved():
        files = [path for path in (tmp_path / "run").iterdir() if path.name != LOCK]
        return {path.name: path.stat().st_mtime_ns for path in files}

    before = saved()
    again = commands.run(*command)
    assert losses(again) == {} and saved() == before
    assert sum("training is finished" in line and str(updates) in line for line in again.splitlines()) == 1


def test_a_finished_run_in_two_processes(commands, tmp_path):
    command = commands.train(tmp_path / "run", "--max-update", "3")
    for _ in range(2):
        train_in_two_processes(command)
    state = torch.load(tmp_path / "run" / "checkpoint_last.pt")
    assert state["optimizer_history"][-1]["num_updates"] == 3


def interrupt(command: list[str], update: int, times: int = 1) -> list[str]:
    """The training command with Ctrl-C in its `update`."""
    return signalled(command, signal.SIGINT, update, times)


def saved_updates(folder) -> int:
    return torch.load(folder / "checkpoint_last.pt")["optimizer_history"][-1]["num_updates"]


def test_ctrl_c_saves(commands, tmp_path):
    command = commands.train(tmp_path, "--max-update", "5")
    done = forked.run(interrupt(command, update=3))
    assert done.returncode == 130 and "after update 3" in last_line(done), done.stdout[-3000:] + done.stderr
    assert saved_updates(tmp_path) == 3
    assert list(losses(commands.run(*command))) == [4, 5]


@pytest.mark.parametrize(
    ("update", "times", "words"),
    [(3, 2, ()), (3, 1, ("--no-save",)), (0, 1, ())],
    ids=["twice", "nothing is saved", "before the first update"],
)
def test_ctrl_c_that_saves_nothing(update, times, words, commands, tmp_path):
    done = forked.run(interrupt(commands.train(tmp_path, "--max-update", "5", *words), update, times))
    assert done.returncode == 130 and "update 1" in last_line(done), done.stdout[-3000:] + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert not list(tmp_path.rglob("*.pt*"))


def test_ctrl_c_in_one_of_two_processes(commands, tmp_path):
    command = commands.train(tmp_path, "--max-update", "5")
    done = run_in_two_processes(command, lambda command, rank: interrupt(command, 3 if rank else 9))
    assert [one.returncode for one in done] == [130, 130]
    assert "after update 3" in last_line(done[0])
    assert saved_updates(tmp_path) == 3
