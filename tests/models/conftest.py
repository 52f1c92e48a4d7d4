"""Runs of the real fairseq commands in separate processes."""

import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.helpers import forked
from tests.helpers.once import filled_once
from tests.lab.conftest import corpus  # noqa: F401  (a fixture)


class Commands:
    """fairseq's commands with this plugin, on one small model."""

    def __init__(self, root: Path, data: Path) -> None:
        self.root, self.data = root, data

    def train(self, save_dir: Path, *extra: str, arch: str = "transnormer_t1") -> list[str]:
        """The command line of a short training run that logs every update as JSON."""
        return [
            sys.executable,
            "-m",
            "fairseq_cli.train",
            str(self.data),
            "--user-dir",
            str(self.root / "user_dir"),
            "--task",
            "language_modeling",
            "--arch",
            arch,
            "--decoder-layers",
            "2",
            "--decoder-embed-dim",
            "16",
            "--decoder-attention-heads",
            "2",
            "--tokens-per-sample",
            "32",
            "--max-target-positions",
            "128",
            "--sample-break-mode",
            "none",
            "--batch-size",
            "8",
            "--optimizer",
            "adam",
            "--lr",
            "0.01",
            "--cpu",
            "--seed",
            "3",
            "--log-format",
            "json",
            "--log-interval",
            "1",
            "--save-dir",
            str(save_dir),
            *extra,
        ]

    def run(self, *command: str) -> str:
        """Standard output and error of a finished command."""
        done = forked.run(command, check=True)
        return done.stdout + done.stderr


def signalled(command: list[str], sent: signal.Signals, update: int, times: int = 1) -> list[str]:
    """The training command that gets a signal in its `update`."""
    python, option, _, *arguments = command
    return [python, option, "tests.helpers.interrupted", *map(str, (int(sent), update, times)), *arguments]


def train_in_two_processes(command: list[str]) -> None:
    """Run a training command as two workers that speak over gloo."""
    done = run_in_two_processes(command)
    assert [one.returncode for one in done] == [0, 0], (done[0].stdout + done[0].stderr)[-3000:]


def assert_same_weights(folder: Path, rtol: float = 1e-4, atol: float = 1e-4) -> None:
    """The last checkpoints of the runs `one` and `two` in `folder` agree to a hundredth of a step.

    Where a gradient is nearly zero, Adam turns its rounding into a part of the step, 0.01.
    """
    one, two = (torch.load(folder / name / "checkpoint_last.pt")["model"] for name in ("one", "two"))
    for name, value in one.items():
        torch.testing.assert_close(two[name], value, rtol=rtol, atol=atol, msg=name)


def run_in_two_processes(
    command: list[str], adapt: Callable[[list[str], int], list[str]] = lambda command, rank: command
) -> list[subprocess.CompletedProcess[str]]:
    """How the two workers ended; `adapt` changes the command of each by its rank."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    distributed = [
        "--distributed-world-size",
        "2",
        "--distributed-no-spawn",
        "--distributed-init-method",
        address,
        "--distributed-backend",
        "gloo",
        "--ddp-backend",
        "legacy_ddp",
    ]
    ranks = [[*command, *distributed, "--distributed-rank", str(rank)] for rank in range(2)]
    processes = [forked.start(adapt(words, rank)) for rank, words in enumerate(ranks)]
    return [process.wait() for process in processes]


@pytest.fixture(scope="session")
def commands(root, corpus) -> Commands:  # noqa: F811
    """The commands on the tiny corpus."""
    return Commands(root, corpus)


@pytest.fixture(scope="session")
def trained(commands, tmp_path_factory) -> tuple[Path, str]:
    """A run of 12 updates that saved after every fourth: its folder and its log."""

    def fill(folder: Path) -> None:
        options = ("--max-update", "12", "--save-interval-updates", "4", "--dropout", "0.1")
        (folder / "log").write_text(commands.run(*commands.train(folder / "run", *options)))

    folder = filled_once(tmp_path_factory, "trained model", fill)
    return folder / "run", (folder / "log").read_text()
