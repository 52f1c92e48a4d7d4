"""What a training's log tells."""

import pytest

from pipeline.errors import UserError
from pipeline.reports.tables import shown, spread
from pipeline.training.figures import run_figures, training_figures
from tests.helpers.logs import LOG, line


@pytest.fixture
def log(tmp_path):
    def write(lines):
        path = tmp_path / "train.log"
        path.write_text("".join(lines))
        return path

    return write


def test_curves_and_time_of_an_interrupted_run(log):
    figures = training_figures(log(LOG))
    assert figures["curves"]["train"] == [(10, 9.0), (20, 8.0), (30, 7.5), (40, 7.0)]
    assert figures["curves"]["valid"] == [(20, 8.5), (40, 7.2)]
    assert figures["train_seconds"] == 5 + 5 + 10 + 5 + 4  # the first is without a speed: the usual one
    assert figures["tokens_per_second"] == 128 and figures["tokens_per_update"] == 64
    assert figures["peak_memory_bytes"] == 1000
    assert run_figures(log(LOG))["seconds"] == figures["train_seconds"]


def test_a_run_shorter_than_an_interval_has_the_figures_of_its_epochs(log):
    epoch = line("train", train_loss=5.0, train_wps=32, train_wpb=16, train_num_updates=4)
    path = log([line("valid", valid_loss=6.0, valid_num_updates=4), epoch])
    figures = training_figures(path)
    assert figures["tokens_per_second"] == 32 and figures["curves"]["train"] == [(4, 5.0)]
    assert figures["train_seconds"] == 4 * 16 / 32
    assert run_figures(path)["updates"] == 4


def test_a_run_without_an_interval_has_a_dash_in_every_table(log):
    seconds = run_figures(log([line("valid", valid_loss=6.0, valid_num_updates=4)]))["seconds"]
    assert spread([seconds, seconds]) == shown(seconds, ".1f") == "–"
    assert spread([seconds, 2.0, 4.0], "{:.0f}") == "3 (2 to 4)"


def test_a_log_without_losses_is_said(log):
    with pytest.raises(UserError, match="log_format"):
        training_figures(log(LOG[:1]))
