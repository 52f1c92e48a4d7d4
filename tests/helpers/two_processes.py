"""Two processes on this machine against one that accumulates twice as many batches."""

import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import torch

from pipeline.files import ROOT
from pipeline.training.process.logged_run import run_fairseq
from pipeline.training.recipe import read_experiment
from pipeline.training.train import Machines

Flags = Callable[[Machines, Path, str], list[str]]


def of_recipe(recipe: Path, data: Path) -> Flags:
    """Four updates of a YAML on `data`, for `assert_two_train_as_one`."""

    def flags(machines: Machines, save_dir: Path, update_freq: str) -> list[str]:
        words = [str(data), "--user-dir", str(ROOT / "user_dir"), *read_experiment(recipe).flags()]
        words += [*machines.flags(), "--update-freq", update_freq, "--save-dir", str(save_dir)]
        return [*words, "--max-update", "4", "--disable-validation", "--batch-size", "4"]

    return flags


def assert_two_train_as_one(flags: Flags, folder: Path, skip: tuple[str, ...] = ()) -> None:
    """Train twice and compare `checkpoint_last.pt`.

    Args:
        flags: makes the command line of fairseq-train from the machines, the save directory, `--update-freq`.
        folder: for checkpoints and logs.
        skip: ends of the names of parameters that each worker has for itself.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        master = f"127.0.0.1:{free.getsockname()[1]}"

    def train(name: str, machines: Machines, update_freq: str) -> partial:
        # Made here, in one thread: hydra and fairseq's parser know one command line at a time.
        words = flags(machines, folder / name, update_freq)
        return partial(run_fairseq, "train", words, folder / f"{name}{machines.node_rank}.log")

    runs = [train("two", Machines(0, 2, rank, master), "1") for rank in range(2)]
    with ThreadPoolExecutor(2) as pool:
        nodes = [pool.submit(run) for run in runs]
    assert [node.result() for node in nodes] == [None, None]
    train("one", Machines(0), "2")()
    one, two = (
        torch.load(folder / name / "checkpoint_last.pt", weights_only=True)["model"]
        for name in ("one", "two")
    )
    compared = [name for name in one if not name.endswith(skip)]
    assert compared
    for name in compared:
        torch.testing.assert_close(two[name], one[name], rtol=1e-4, atol=1e-5, msg=name)
