"""Checkpoints damaged in ten ways: the run resumes from a whole one, and nothing in them is run."""

import os
import pickle
import shutil
from pathlib import Path

import pytest
import torch

from tests.faults.runs import ROUNDS, same_losses
from tests.helpers.evil import Evil

pytestmark = pytest.mark.fault("damaged checkpoint")


def flip_a_bit(path: Path, trace: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def dangle(path: Path, trace: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere")


DAMAGES = {
    "empty": lambda path, trace: path.write_bytes(b""),
    "half": lambda path, trace: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "last byte missing": lambda path, trace: path.write_bytes(path.read_bytes()[:-1]),
    "one bit": flip_a_bit,
    "random bytes": lambda path, trace: path.write_bytes(os.urandom(50_000)),
    "text": lambda path, trace: path.write_text("not a checkpoint\n"),
    "pickle with code": lambda path, trace: path.write_bytes(pickle.dumps(Evil(trace))),
    "checkpoint with code": lambda path, trace: torch.save({"model": {}, "cfg": Evil(trace)}, path),
    "no model": lambda path, trace: torch.save({"weights": torch.zeros(3)}, path),
    "dangling link": dangle,
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", DAMAGES if ROUNDS > 1 else ["one bit"])
def test_resumes_from_a_whole_one(training, unbroken, tmp_path, kind):
    """Both checkpoints of the last update are damaged; that of update 25 is left."""
    folder, trace = tmp_path / "run", tmp_path / "trace"
    shutil.copytree(unbroken, folder)
    for name in ("checkpoint_last.pt", "checkpoint_best.pt"):
        DAMAGES[kind](folder / name, trace)
    process = training.start(training.command(folder))
    said, _ = process.communicate()
    assert process.returncode == 0
    assert "resuming from checkpoint_2_25.pt (update 25)" in said
    assert same_losses(folder, unbroken)
    assert not trace.exists()
