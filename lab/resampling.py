"""The noise of a test set: a paired bootstrap over its examples (Efron and Tibshirani 1993, chapter 16).

Two rows of a table are scored on the same examples. Each resampling draws as many examples with replacement
and scores all runs of both rows on them, so that what is hard for both does not count as a difference.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lab.errors import check_known

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

        Zeros and ones `(examples, 5)`: right, true positive, false positive, false negative, true negative.
        """
        predicted, true = (np.frombuffer(text.encode(), np.uint8) for text in (self.predicted, self.true))
        said, so = predicted == ord("1"), true == ord("1")
        table = (predicted == true, said & so, said & ~so, ~said & so, ~said & ~so)
        return np.stack(table, axis=1).astype(np.float64)


def half_interval(metric: str, first: Mapping[int, Predictions], second: Mapping[int, Predictions]) -> float:
    """Half the 95 % interval that the examples leave to the mean difference of two rows, in percent.

    The rows are predictions by seed, of which the common seeds count; `metric` is one of METRICS.

    Raises:
        UserError: for another metric.
        ValueError: if the runs do not share one test set.
    """
    check_known(metric, METRICS, f"there is no bootstrap of {metric}")
    seeds = sorted(first.keys() & second.keys())
    if len({run.true for row in (first, second) for run in map(row.__getitem__, seeds)}) != 1:
        raise ValueError("the rows were scored on different examples")
    examples = len(first[seeds[0]].true)
    draws = np.random.default_rng(1).multinomial(examples, np.full(examples, 1 / examples), RESAMPLINGS)
    difference = np.zeros(RESAMPLINGS)
    for seed in seeds:
        for sign, row in ((1, first), (-1, second)):
            difference += sign * METRICS[metric](*(draws @ row[seed].outcomes()).T)
    low, high = np.quantile(difference / len(seeds), [0.025, 0.975])
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
