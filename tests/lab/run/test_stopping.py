"""Training that is asked to stop; tests/faults asks real runs."""

import multiprocessing
import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from lab.files import ROOT
from user_dir.fairseq_patches import stopping, train_loop

LAST = 100
KILL = "import os, sys; os.kill(*map(int, sys.argv[1:]))"


@pytest.fixture
def loop(monkeypatch):
    """fairseq's loop after an update: its steps are in `done`; asked to stop, it is `stopping`'s."""
    done = []
    module = SimpleNamespace(
        train=lambda *given: done.append("train"),
        validate=lambda *given: done.append("validate"),
        validate_and_save=lambda cfg, trainer, *given: (
            done.append("schedule") or ([1.5], trainer.get_num_updates() >= LAST)
        ),
        checkpoint_utils=SimpleNamespace(save_checkpoint=lambda *given: done.append("save")),
        done=done,
    )
    monkeypatch.setitem(sys.modules, "fairseq_cli.train", module)
    train_loop.apply()
    monkeypatch.setattr(stopping._Request, "made", True)
    return module


def after(loop, update, end_of_epoch=False, epoch=2):
    """The loop after an update of a run that validates every 10 and saves every 20 and every second epoch."""
    cfg = SimpleNamespace(
        dataset=SimpleNamespace(validate_interval_updates=10),
        checkpoint=SimpleNamespace(save_interval_updates=20, save_interval=2),
        optimization=SimpleNamespace(max_update=LAST),
    )
    trainer = SimpleNamespace(get_num_updates=lambda: update, data_parallel_world_size=1, stop_agreed=0.0)
    return loop.validate_and_save(cfg, trainer, None, SimpleNamespace(epoch=epoch), ["valid"], end_of_epoch)


@pytest.mark.parametrize(
    ("given", "done"),
    [
        ({"update": 7}, ["save"]),
        ({"update": 30}, ["schedule", "save"]),  # validated, but not saved by schedule
        ({"update": 33, "end_of_epoch": True}, ["schedule"]),  # saved by schedule
    ],
)
def test_saves_what_the_schedule_does_not_and_ends(given, done, loop):
    with pytest.raises(SystemExit) as end:
        after(loop, **given)
    assert end.value.code == stopping.STOPPED
    assert loop.done == done


def test_an_epoch_whose_end_is_not_saved_and_the_last_update(loop):
    """The one ends after the next update, from where it can be resumed; the other has nothing to resume."""
    assert after(loop, 33, end_of_epoch=True, epoch=3) == ([1.5], False)
    assert after(loop, LAST) == ([1.5], True)
    assert loop.done == ["schedule"] * 2


def test_not_asked(loop, monkeypatch):
    monkeypatch.setattr(stopping._Request, "made", False)
    assert after(loop, 7) == ([1.5], False)
    assert loop.done == ["schedule"]


def echo(here):
    stopping._heed_parent_only()
    here.send("ready")
    word = here.recv()
    while signal.sigpending():  # a signal that is still pending would swallow the next one of its kind
        pass
    here.send(word)
    signal.pause()


def test_data_loaders_worker_heeds_its_parent_only():
    """A scheduler's signal to the whole job must not end it before its parent has saved."""
    ours, theirs = multiprocessing.Pipe()
    worker = multiprocessing.get_context("fork").Process(target=echo, args=(theirs,))
    worker.start()
    try:
        theirs.close()
        assert ours.recv() == "ready"
        for number in (signal.SIGTERM, signal.SIGUSR1):
            subprocess.run([sys.executable, "-S", "-c", KILL, str(worker.pid), str(number)], check=True)
        ours.send("still there")
        assert ours.recv() == "still there"
        os.kill(worker.pid, signal.SIGTERM)
        worker.join()
        assert worker.exitcode == 0
    finally:
        worker.kill()
        worker.join()


def wait_for(rank, number, code):
    """As a spawned process: `number` ends it with exit code `code`, or as usual if that is None."""
    for request in stopping.REQUESTS:  # as after an exec
        signal.signal(request, signal.SIG_DFL)
    if code is not None:
        signal.signal(number, lambda *given: sys.exit(code))
    os.write(1, b"ready\n")  # at once: another process writes as well
    signal.pause()


def spawning(*words):
    module = sys.modules[torch.multiprocessing.spawn.__module__]
    usual = module.start_processes

    def start(fn, args, nprocs, join, daemon, start_method):
        """A fork: a new interpreter would import torch."""
        context = usual(fn, args, nprocs, False, daemon, "fork")
        os.write(1, b"started\n")
        while not context.join():
            pass

    module.start_processes = start
    with stopping.of_command(trains=True):
        torch.multiprocessing.spawn(wait_for, words)


def started(call):
    """A command that calls a function of this file; a fork of pytest that has trained ignores requests."""
    words = [sys.executable, "-c", f"from {__name__} import *; {call}"]
    return subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize(
    ("number", "code", "ended"),
    [(signal.SIGUSR1, stopping.STOPPED, stopping.STOPPED), (signal.SIGTERM, None, -signal.SIGTERM)],
    ids=["training", "before training"],
)
def test_a_request_to_the_command_reaches_the_processes_that_it_spawned(number, code, ended):
    """fairseq-train on several GPUs; its process would end at once, and take the others with it."""
    with started(f"spawning({number:d}, {code})") as command:
        try:
            assert {command.stdout.readline(), command.stdout.readline()} == {"started\n", "ready\n"}
            command.send_signal(number)
            assert command.wait() == ended
        finally:
            command.kill()


def end_itself():
    with stopping.requests_passed_on():
        os.kill(os.getpid(), signal.SIGTERM)


def test_a_request_before_the_first_process_is_spawned_ends_the_command():
    with started("end_itself()") as command:
        assert command.wait() == -signal.SIGTERM
