"""A run of several processes resumes, also with another number of processes."""

import pytest

from tests.faults.runs import at_update, losses, same_losses

ROUNDING = 2e-3  # the log has three decimals


@pytest.mark.slow
@pytest.mark.fault("several processes")
@pytest.mark.parametrize(("before", "after"), [(2, 2), (1, 2), (2, 1)], ids=["2 to 2", "1 to 2", "2 to 1"])
def test_killed_and_resumed(training, unbroken, tmp_path, before, after):
    assert set(training.run(tmp_path, processes=before, fault=at_update(17))) == {-9}
    assert training.run(tmp_path, processes=after) == [0] * after
    assert same_losses(tmp_path, unbroken, ROUNDING)
    assert [update for update, values in losses(tmp_path).items() if len(values) == 2] == [16]
