"""Training on consecutive text by fairseq's command: stopped and resumed, and in two processes."""

import pytest
import torch

from tests.models.conftest import assert_same_weights, losses, train_in_two_processes

OPTIONS = ("--task", "carried_language_modeling", "--criterion", "chunked_cross_entropy", "--batch-size", "4")


@pytest.mark.slow
def test_a_stopped_run_goes_on_at_its_place(commands, tmp_path):
    def train(updates):
        output = commands.run(*commands.train(tmp_path, *OPTIONS, "--max-update", str(updates)))
        assert "nan" not in " ".join(losses(output).values())
        return list(losses(output))

    assert train(4) == [1, 2, 3, 4]
    assert train(7) == [5, 6, 7]
    state = torch.load(tmp_path / "checkpoint_last.pt", weights_only=True)
    assert state["extra_state"]["train_iterator"]["iterations_in_epoch"] == 7


@pytest.mark.slow
def test_two_processes_equal_one_with_all_streams(commands, tmp_path):
    options = (*OPTIONS, "--max-update", "4", "--dropout", "0", "--disable-validation")
    commands.run(*commands.train(tmp_path / "one", *options, "--batch-size", "8"))
    train_in_two_processes(commands.train(tmp_path / "two", *options))
    assert_same_weights(tmp_path)
