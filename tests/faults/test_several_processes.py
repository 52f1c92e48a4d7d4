"""A run of several processes resumes, also with another number of processes."""

import pytest

from tests.faults.runs import at_update, longer, losses, same_losses

ROUNDING = 2e-3  # the log has three decimals
# How many processes are killed after which update; the last one resumes and ends the run.
KILLED = longer((1, 7), (2, 12), (2, 17), (1, 22), (2, 26), fast=2)


@pytest.mark.slow
@pytest.mark.fault("several processes killed")
def test_killed_and_resumed(training, unbroken, tmp_path, record_property):
    record_property("times", len(KILLED))
    for processes, update in KILLED:
        assert set(training.run(tmp_path, processes=processes, fault=at_update(update))) == {-9}
    assert training.run(tmp_path) == [0]
    assert same_losses(tmp_path, unbroken, ROUNDING)
    again = [update for update, values in losses(tmp_path).items() if len(values) > 1]
    assert again == list(longer(6, 11, 16, 21, fast=2))
