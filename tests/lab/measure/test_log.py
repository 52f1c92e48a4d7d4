"""Figures that a measure takes from the log of a run."""

import json

from lab.measure.accuracy import logged


def test_the_later_record_of_an_update_counts(tmp_path):
    """A resumed run repeats the updates after its last checkpoint."""
    records = [
        {"num_updates": "1", "gnorm": "4", "loss_scale": "8", "alpha/layer0": "1.5"},
        {"num_updates": "2", "gnorm": "9", "loss_scale": "2", "alpha/layer0": "9"},
        {"num_updates": "2", "gnorm": "1", "loss_scale": "4", "alpha/layer0": "2.5", "beta/layer0": "3"},
        {"num_updates": "3", "gnorm": "3", "loss_scale": "16"},
    ]
    lines = [f"2026-01-01 00:00:00 | INFO | train_inner | {json.dumps(record)}\n" for record in records]
    (tmp_path / "train.log").write_text("".join(lines))
    assert logged(tmp_path / "train.log") == {
        "gradient_norm": 3,
        "largest_inverse_loss_scale": 0.25,
        "exponents": {"alpha/layer0": [(1, 1.5), (2, 2.5)], "beta/layer0": [(2, 3)]},
    }


def test_a_log_without_intervals(tmp_path):
    (tmp_path / "train.log").write_text("")
    assert logged(tmp_path / "train.log") == {
        "gradient_norm": None,
        "largest_inverse_loss_scale": None,
        "exponents": {},
    }
