"""LLN's theorems on the temperature of a softmax, by finite differences."""

import math

import pytest
import torch

from user_dir.analysis.concentration import (
    entropy_slope,
    softmax_entropy,
    softmax_variance,
    variance_slope,
)

SCORES = 3 * torch.randn(20, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
STEP = 1e-5


def central_difference(function, tau):
    return (function(SCORES, tau + STEP) - function(SCORES, tau - STEP)) / (2 * STEP)


@pytest.mark.parametrize("tau", [0.3, 1.0, 4.0])
@pytest.mark.parametrize(
    ("function", "slope"), [(softmax_entropy, entropy_slope), (softmax_variance, variance_slope)]
)
def test_slopes(function, slope, tau):
    torch.testing.assert_close(slope(SCORES, tau), central_difference(function, tau), rtol=1e-6, atol=1e-8)


def test_entropy_grows_with_the_temperature():
    grid = torch.logspace(-1, 2, 30).tolist()
    found = torch.stack([softmax_entropy(SCORES, tau) for tau in grid])
    assert (found.diff(dim=0) > 0).all()
    constant = torch.stack([softmax_entropy(torch.ones(12), tau) for tau in grid])
    torch.testing.assert_close(constant, torch.full_like(constant, math.log2(12)))


def test_limits_of_the_variance():
    n = SCORES.shape[1]
    assert softmax_variance(SCORES, 1e-3).tolist() == pytest.approx([(1 - 1 / n) / n] * len(SCORES))
    assert softmax_variance(SCORES, 1e6).max() < 1e-12
