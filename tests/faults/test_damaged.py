"""Checkpoints damaged in ten ways: the run resumes from a whole one, and nothing in them is run."""

import shutil

import pytest

from tests.faults.runs import ROUNDS, same_losses
from tests.helpers.damages import DAMAGES

pytestmark = pytest.mark.fault("damaged checkpoint")


@pytest.mark.slow
@pytest.mark.parametrize("kind", DAMAGES if ROUNDS > 1 else ["one bit"])
def test_resumes_from_a_whole_one(training, unbroken, tmp_path, kind):
    """Both checkpoints of the last update are damaged; the checkpoint of update 25 is left."""
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
