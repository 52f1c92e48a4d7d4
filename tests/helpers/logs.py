"""Logs of training: reading them, waiting for a line, and a made-up log of a resumed run."""

import json
import time
from collections.abc import Callable
from pathlib import Path

from lab.run.log import Entry, log_entries


def updates(log: str) -> list[Entry]:
    """The record of each update."""
    return [record for kind, record in log_entries(log.splitlines()) if kind == "train_inner"]


def losses(log: str) -> dict[int, float]:
    """The training loss of each update; of updates that a resumed run repeats, the last one."""
    return {int(record["num_updates"]): record["loss"] for record in updates(log)}


def line(kind: str, **figures: float) -> str:
    """A record of fairseq's JSON log."""
    record = json.dumps({key: str(value) for key, value in figures.items()})
    return f"2000-01-02 03:04:05 | INFO | {kind} | {record}\n"


def inner(update: int, loss: float, wps: float) -> str:
    """The record of an update."""
    return line("train_inner", loss=loss, wps=wps, wpb=64, num_updates=update, wall=0)


LOG = [
    "a line of another kind\n",
    inner(10, 9.0, 0),
    inner(20, 8.0, 128),
    line("valid", valid_loss=8.5, valid_num_updates=20),
    inner(30, 7.9, 64),  # lost: the run was ended before the next checkpoint
    inner(30, 7.5, 128),
    inner(40, 7.0, 160),
    line("valid", valid_loss=7.2, valid_num_updates=40),
    line("usage", peak_memory=1000),
    line("usage", peak_memory=500),
]


def wait_for(sign: str, log: Path, is_alive: Callable[[], object]) -> None:
    """Wait until a running process has written `sign` to `log`; AssertionError if it ends before."""
    while not (log.is_file() and sign in log.read_text()):
        assert is_alive(), f"{log} ends without {sign!r}"
        time.sleep(0.02)
