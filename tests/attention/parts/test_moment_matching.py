"""The constants of LLN attention against direct simulations."""

import math
import statistics

import numpy as np
import pytest
import torch
from torch import Tensor

from user_dir.attention import fit_moment_matching
from user_dir.attention.parts.moment_matching import (
    AUTHORS_CONSTANTS,
    constants,
    lln_log_variance,
)


def softmax_log_variance(q: Tensor, k: Tensor) -> float:
    """The variance of `log softmax(q k^T / sqrt(d))` over all entries, for `q, k: (N, d)`."""
    return (q @ k.T * q.shape[-1] ** -0.5).log_softmax(-1).var().item()


def log_variance(weights):
    """The variance of the logarithms of positive weights, each row of them divided by its sum."""
    logs = [math.log(w / sum(row)) for row in weights for w in row]
    return statistics.variance(logs)


def test_variances_of_logarithms_entry_by_entry():
    q, k = torch.randn(2, 7, 3, dtype=torch.float64)
    a, b = q.tolist(), k.tolist()
    softmax = [[math.exp(sum(x * y for x, y in zip(i, j)) / math.sqrt(3)) for j in b] for i in a]  # noqa: B905
    lln = [[sum(math.exp(x + y) for x, y in zip(i, j)) for j in b] for i in a]  # noqa: B905
    assert softmax_log_variance(q, k) == pytest.approx(log_variance(softmax), rel=1e-9)
    assert lln_log_variance(q, k) == pytest.approx(log_variance(lln), rel=1e-9)


def test_fit_is_the_line_through_simulated_variances():
    generator = torch.Generator().manual_seed(7)
    variances, measured = np.linspace(1.0, 6.0, 5), []
    for variance in variances:
        q, k = (torch.randn(60, 4, generator=generator).double().numpy() for _ in range(2))
        weights = np.exp(math.sqrt(variance) * (q[:, None] + k[None])).sum(-1)
        measured.append(np.log(weights / weights.sum(1, keepdims=True)).var(ddof=1))
    line = np.polyfit(2 * variances, measured, 1)
    fit = fit_moment_matching(4, length=60, variances=(1.0, 6.0), points=5, seed=7)
    assert fit == pytest.approx(line, rel=1e-4)


def test_one_channel_is_exact():
    """Up to a constant per row log P is the key's exponent: half of the sum's variance."""
    a, b = fit_moment_matching(1, length=4096, points=8)
    assert a == pytest.approx(0.5, rel=0.03)
    assert b == pytest.approx(0.0, abs=0.15)


def test_head_width_64_comes_near_the_authors_constants():
    a, b = fit_moment_matching(64)
    assert a == pytest.approx(AUTHORS_CONSTANTS[0], rel=0.02)
    assert b == pytest.approx(AUTHORS_CONSTANTS[1], rel=0.05)


@pytest.mark.parametrize("dim", [16, 64, 128])
@pytest.mark.parametrize("sigma", [0.9, 1.0, 1.2])
def test_matched_exponents_have_softmax_variance(dim, sigma):
    a, b = constants(dim)
    q, k = torch.randn(2, 800, dim) * sigma
    scale = math.sqrt((sigma**4 - b) / (2 * a)) / sigma
    assert softmax_log_variance(q, k) == pytest.approx(sigma**4, rel=0.1)
    assert lln_log_variance(scale * q, scale * k) == pytest.approx(softmax_log_variance(q, k), rel=0.25)


@pytest.mark.parametrize(
    ("sigma", "low", "high"),
    [
        (0.3, 9.0, 10.3),  # the line cannot go below -b / a, so alpha and beta stay near 2
        (0.5, 1.5, 1.75),
        (0.6, 0.98, 1.12),
        (0.8, 0.75, 0.83),
        (1.0, 0.82, 0.92),
        (1.2, 0.98, 1.11),
        (1.5, 1.17, 1.36),
        (2.0, 1.25, 1.5),
    ],
)
def test_band_in_which_the_authors_constants_match(sigma, low, high):
    """The variance of log P over softmax attention's for heads of 64: within 25 % from 0.6 to 1.2 only."""
    a, b = AUTHORS_CONSTANTS
    scale = math.sqrt((sigma**4 - b) / (2 * a)) / sigma
    ratios = []
    for _ in range(6):
        q, k = torch.randn(2, 512, 64) * sigma
        ratios.append(lln_log_variance(scale * q, scale * k) / softmax_log_variance(q, k))
    assert low < statistics.mean(ratios) < high


def test_fit_is_deterministic_and_leaves_the_global_generator_alone():
    torch.manual_seed(3)
    first = fit_moment_matching(5, length=50, points=4)
    drawn = torch.rand(1)
    torch.manual_seed(3)
    assert torch.equal(torch.rand(1), drawn)
    assert fit_moment_matching(5, length=50, points=4) == first
    assert fit_moment_matching(5, length=50, points=4, seed=1) != first
