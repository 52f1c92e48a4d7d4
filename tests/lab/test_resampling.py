"""The noise that a test set leaves to a difference of two rows."""

import random

import numpy as np
import pytest
from sklearn.metrics import f1_score, matthews_corrcoef

from lab.errors import UserError
from lab.resampling import METRICS, Predictions, half_interval


def drawn(seed, right, count=400):
    """Predictions of which a share `right` is right, of examples that are the same for every seed."""
    true = [index % 3 == 0 for index in range(count)]
    rng = random.Random(seed)
    return Predictions.of([one if rng.random() < right else not one for one in true], true)


@pytest.mark.parametrize("metric", METRICS)
def test_metrics_are_those_of_scikit_learn(metric):
    run = drawn(1, 0.7)
    said, so = (np.array([*map(int, text)]) for text in (run.predicted, run.true))
    expected = {"accuracy": (said == so).mean(), "f1": f1_score(so, said)}
    expected["matthews"] = matthews_corrcoef(so, said)
    assert METRICS[metric](*run.outcomes().sum(axis=0)) == pytest.approx(expected[metric])


def test_a_class_that_is_never_predicted():
    never = Predictions.of([0, 0, 0], [0, 1, 1]).outcomes().sum(axis=0)
    assert [float(METRICS[name](*never)) for name in ("accuracy", "f1", "matthews")] == [1 / 3, 0, 0]


def test_one_run_of_each_row_has_the_interval_of_paired_shares():
    # right minus right is -1, 0 or 1 for each example: 1.96 standard errors of its mean
    first, second = drawn(1, 0.8), drawn(2, 0.7)
    gaps = [one.outcomes()[:, 0].astype(float) for one in (first, second)]
    expected = 196 * np.std(gaps[0] - gaps[1]) / np.sqrt(400)
    assert half_interval("accuracy", {1: first}, {1: second}) == pytest.approx(expected, rel=0.05)


def test_what_both_rows_get_wrong_is_no_noise():
    same = {seed: drawn(seed, 0.8) for seed in (1, 2, 3)}
    assert half_interval("matthews", same, dict(same)) == 0
    assert half_interval("accuracy", same, {seed: drawn(seed + 10, 0.8) for seed in same}) > 1


def test_more_seeds_leave_less_noise():
    rows = [{seed: drawn(seed + shift, 0.8) for seed in range(8)} for shift in (0, 20)]
    first = [{0: row[0]} for row in rows]
    assert half_interval("accuracy", *rows) < 0.6 * half_interval("accuracy", *first)


def test_rows_without_a_common_seed_have_no_noise():
    assert half_interval("accuracy", {1: drawn(1, 0.8)}, {2: drawn(2, 0.8)}) == 0


def test_rows_of_different_test_sets_are_refused():
    with pytest.raises(UserError, match="different examples"):
        half_interval("accuracy", {1: drawn(1, 0.8)}, {1: drawn(1, 0.8, count=300)})
    with pytest.raises(UserError, match="no bootstrap of pearson"):
        half_interval("pearson", {1: drawn(1, 0.8)}, {1: drawn(2, 0.8)})
