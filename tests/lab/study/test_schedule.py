"""The progress of a running cell, and the message of a failed one."""

import errno
import signal
import sys
from contextlib import ExitStack
from types import SimpleNamespace

import pytest

from lab.commands import quickstart
from lab.run.progress import SECONDS_OF_SILENCE
from lab.study.schedule import Follower, RunningCell
from tests.helpers import forked


def test_what_a_cell_does_is_said_while_its_log_is_silent(tmp_path, capsys):
    cell = quickstart.asked_cells(quickstart.parse(["--out", str(tmp_path)]))[0]
    follower, now = Follower(cell), 0.0
    follower.progress.began = follower.progress.shown = now
    follower.progress.clock = lambda: now
    cell.folder.mkdir(parents=True)
    for said in ("", "evaluating checkpoint_last.pt\n"):
        follower.log.write_text(said)
        follower.look()
        now += SECONDS_OF_SILENCE
        follower.look()
    assert capsys.readouterr().out == "  starting, 00:20\n  evaluating, 00:40\n"
    follower.close()


def test_a_cell_is_shown_once_another_has_ended(tmp_path, capsys):
    """By name, from there on; a line of the log that is half there is read when it is whole."""
    first, second, _ = quickstart.asked_cells(quickstart.parse(["--out", str(tmp_path)]))
    followers = [Follower(cell, cell.values["architecture"]) for cell in (first, second)]
    line = '| INFO | train_inner | {"loss": "9.5", "wps": "1000", "num_updates": "%d"}\n'
    for follower in followers:
        follower.log.parent.mkdir(parents=True)
        follower.log.write_text(line % 10 + (line % 20)[:-9])
        follower.join()
        with follower.log.open("a") as log:
            log.write((line % 20)[-9:] + line % 30)
        follower.look()
        follower.join()
        with follower.log.open("a") as log:
            log.write(line % 400)
        follower.look()
        follower.close()
    shown = "  {}: update {}/400, loss 9.50 bits, 1,000 tokens/s\n"
    names = ("transnormer_t1", "transnormer_t2")
    assert capsys.readouterr().out == "".join(shown.format(name, n) for name in names for n in (30, 400))


def test_quickstart_trains_side_by_side_where_cores_and_memory_allow(monkeypatch):
    cells, gpus = ["one", "two", "three"], []
    monkeypatch.setattr(quickstart, "gpus", lambda: gpus)
    for cores, gigabytes, jobs in ((1, 16, 1), (2, 2, 1), (2, 4, 3), (8, 16, 3)):
        monkeypatch.setattr(quickstart, "usable_cores", lambda cores=cores: cores)
        monkeypatch.setattr(quickstart, "memory_available", lambda gigabytes=gigabytes: gigabytes * 10**9)
        assert quickstart.jobs(cells) == jobs
    gpus.append("0")
    assert quickstart.jobs(cells) is None


@pytest.mark.parametrize(
    ("code", "said", "reason"),
    [
        (1, "error: no\nerror: the disk is full\nTraceback\nOSError\n", "the disk is full"),
        (1, "Traceback\nOSError\n", "its process ended with code 1"),
        (errno.ENOSPC, "", "the disk is full; free some space"),
        (-signal.SIGKILL, "", "its process was ended by SIGKILL"),
    ],
)
def test_why_a_cell_has_failed(tmp_path, code, said, reason):
    messages = tmp_path / "messages"
    messages.write_text(said)
    assert RunningCell(None, 0, SimpleNamespace(returncode=code), messages, ExitStack()).reason() == reason


FULL = """
import sys
from pathlib import Path
from lab.study import worker
sys.stdout = open(1, "w", closefd=False)  # fails at the end of the block, when it is flushed
worker.open_to_append = lambda log: log.open("ab")  # which refuses a device
try:
    with worker.output_to(Path(sys.argv[1])):
        print("a line of the log")
except OSError as error:
    print(error.errno)
"""


def test_what_is_wrong_is_said_where_a_full_disk_takes_no_log(tmp_path, monkeypatch):
    (tmp_path / "full.py").write_text(FULL)
    monkeypatch.syspath_prepend(tmp_path)
    done = forked.run([sys.executable, "-m", "full", "/dev/full"], check=True)
    assert done.stdout.splitlines()[-1] == str(errno.ENOSPC)
