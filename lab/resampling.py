"""The noise of a test set: a paired bootstrap over its examples (Efron and Tibshirani 1993, chapter 16).

Two rows of a table are scored on the same examples. Each resampling draws as many examples with replacement
and scores all runs of both rows on them, so that what is hard for both does not count as a difference.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lab.errors import UserError, check_known

RESAMPLINGS = 2000


@dataclass(frozen=True)
class Predictions:
    """The predicted and the true class of each example of a test set, as digits."""

    predicted: str
    true: str

    @classmethod
    def of(cls, predicted: Sequence[int], true: Sequence[int]) -> "Predictions":
        """From class indices below 10."""
        return cls(*("".join(str(int(index)) for index in classes) for classes in (predicted, true)))

    def outcomes(self) -> np.ndarray:
        """For each example whether it is right, and its place in the confusion table of class 1.

        Booleans `(examples, 5)`: right, true positive, false positive, false negative, true negative.
        """
        predicted, true = (np.frombuffer(text.encode(), np.uint8) for text in (self.predicted, self.true))
        said, so = predicted == ord("1"), true == ord("1")
        table = (predicted == true, said & so, said & ~so, ~said & so, ~said & ~so)
        return np.stack(table, axis=1)


def half_interval(metric: str, first: Mapping[int, Predictions], second: Mapping[int, Predictions]) -> float:
    """Half the 95 % interval that the examples leave to the mean difference of two rows, in percent.

    The rows are predictions by seed, of which the common seeds count; without any it is 0. `metric` is one of
    METRICS. Raises UserError for another one, or if the runs do not share one test set.
    """
    check_known(metric, METRICS, f"there is no bootstrap of {metric}")
    seeds = sorted(first.keys() & second.keys())
    runs = [row[seed] for row in (first, second) for seed in seeds]
    if not runs:
        return 0.0
    if len({run.true for run in runs}) != 1:
        raise UserError(
            "two rows of a claim were scored on different examples; measure both on the same data"
        )
    # Examples with the same outcomes in all runs are drawn together.
    kinds, counts = np.unique(np.hstack([run.outcomes() for run in runs]), axis=0, return_counts=True)
    draws = np.random.default_rng(1).multinomial(counts.sum(), counts / counts.sum(), RESAMPLINGS)
    scores = [METRICS[metric](*(draws @ part).T) for part in np.hsplit(kinds.astype(np.float64), len(runs))]
    difference = np.mean(scores[: len(seeds)], axis=0) - np.mean(scores[len(seeds) :], axis=0)
    low, high = np.quantile(difference, [0.025, 0.975])
    return 100 * float(high - low) / 2


def accuracy(right, tp, fp, fn, tn):
    """The share of right predictions."""
    return right / (tp + fp + fn + tn)


def f1(right, tp, fp, fn, tn):
    """The harmonic mean of precision and recall of class 1; 0 without a true positive."""
    return 2 * tp / np.maximum(2 * tp + fp + fn, 1)


def matthews(right, tp, fp, fn, tn):
    """Matthews' correlation of two classes; 0 where one is never predicted or never true."""
    product = (tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)
    return (tp * tn - fp * fn) / np.sqrt(np.maximum(product, 1))


METRICS = {"accuracy": accuracy, "f1": f1, "matthews": matthews}
"""Of counts, each an array with a number for every resampling."""
