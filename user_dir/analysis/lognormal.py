"""How log-normal attention is (LLN, Propositions 3.1 and 4.1), and Fenton's sum of log-normal variables."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class LogNormality:
    """How normal the logarithms of attention weights are: normal logarithms mean log-normal weights.

    `distance` is Kolmogorov's, of the standardised values from the normal distribution; `correlation` that
    of the Q-Q plot. There are no p-values: entries of one matrix are dependent.
    """

    mean: float
    variance: float
    skew: float
    distance: float
    correlation: float
    count: int


def log_normality(log_weights: Tensor) -> LogNormality:
    """How far `log_weights`, a tensor of any shape, are from normal; entries of -inf are left out.

    O(n log n). Raises ValueError for fewer than two different values.
    """
    from scipy import special

    values = log_weights.detach().double().flatten()
    values = np.sort(values[torch.isfinite(values)].numpy(force=True))
    if len(values) < 2 or values[0] == values[-1]:
        raise ValueError("log_weights holds fewer than two different values; expected a distribution")
    mean, deviation = values.mean(), values.std()
    standard = (values - mean) / deviation
    steps = np.arange(len(values) + 1) / len(values)
    expected = special.ndtr(standard)
    distance = max(np.abs(expected - steps[1:]).max(), np.abs(expected - steps[:-1]).max())
    quantiles = special.ndtri((np.arange(len(values)) + 0.5) / len(values))
    return LogNormality(
        mean=float(mean),
        variance=float(deviation**2),
        skew=float((standard**3).mean()),
        distance=float(distance),
        correlation=float(np.corrcoef(quantiles, standard)[0, 1]),
        count=len(values),
    )


def fenton(variance: float, terms: int) -> tuple[float, float]:
    """Mean and variance of `ln sum_d exp(N(0, variance))` over `terms` terms, by Fenton's approximation."""
    of_sum = math.log(math.expm1(variance) / terms + 1)
    return math.log(terms) + (variance - of_sum) / 2, of_sum


def lln_log_weights(a: Tensor, b: Tensor) -> Tensor:
    """`ln P` of LLN attention for exponents `a = alpha q`, `b = beta k: (..., N, d)`; `(..., N, N)`.

    In float64, in logarithms: P itself would underflow in float32.
    """
    a, b = a.double(), b.double()
    top_a, top_b = a.amax(-1, keepdim=True), b.amax((-2, -1), keepdim=True)
    return ((a - top_a).exp() @ (b - top_b).exp().mT).log().log_softmax(-1)
