"""Several trainings of one process, as of a notebook or of `fairseq-hydra-train --multirun`."""

from types import SimpleNamespace

import fairseq_cli.train as loop
import numpy as np
import pytest
import torch

from conventions import LOCKED
from user_dir.checks.checkpoints import read_safely
from user_dir.checks.locks import lock_save_dir
from user_dir.fairseq_patches import checkpoints, train_loop


@pytest.fixture
def patience():
    """A run that `--patience 2` has stopped."""
    checkpoint = SimpleNamespace(patience=2, maximize_best_checkpoint_metric=False, reset_meters=False)
    optimization = SimpleNamespace(max_update=100, max_epoch=0)
    cfg = SimpleNamespace(checkpoint=checkpoint, optimization=optimization)
    for score in np.ones(3):  # scores of correlations are numbers of NumPy's
        stopped = loop.should_stop_early(cfg, score)
    assert stopped
    yield cfg
    train_loop.resume_patience({})


def restore(cfg, extra_state, updates):
    checkpoints.restore_schedules(
        cfg.checkpoint, SimpleNamespace(get_num_updates=lambda: updates, lr_scheduler=None), None, extra_state
    )


def test_counts_of_patience_can_be_saved(patience, tmp_path):
    torch.save(
        {"model": {}, "cfg": {"model": {}}, "extra_state": train_loop.patience_state()}, tmp_path / "a.pt"
    )
    assert read_safely(tmp_path / "a.pt")["extra_state"] == {"best": 1.0, "num_runs": 2}


def test_a_run_begins_without_the_counts_of_the_one_before(patience):
    assert train_loop.is_finished(patience, 0, 1)
    restore(patience, None, updates=0)
    assert not train_loop.is_finished(patience, 0, 1)
    restore(patience, {"patience": {"best": 1.0, "num_runs": 2}}, updates=9)
    assert train_loop.is_finished(patience, 9, 2)


def test_a_folder_can_be_taken_again(tmp_path, monkeypatch):
    monkeypatch.setenv(LOCKED, "")  # put back when the test ends
    for name in ("a", "b", "a"):
        (tmp_path / name).mkdir(exist_ok=True)
        lock_save_dir(str(tmp_path / name))
