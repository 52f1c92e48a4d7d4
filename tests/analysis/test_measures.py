"""Entropy, spectral gap, temperature, log-normality and local scores against values known in closed form."""

import math

import pytest
import torch

from user_dir.analysis import (
    appendix_f_curve,
    causal_local_score,
    entropy,
    fenton,
    linear_spectral_gap,
    lln_temperature,
    local_score,
    log_normality,
    negative_share,
    normalized_rows,
    relative_deviation,
    relative_entropy,
    row_temperature,
    spectral_gap,
    temperature,
    top_singular_value,
    window_widths,
    zero_rows,
)
from user_dir.errors import UserError

N = 64
UNIFORM = torch.full((N, N), 1 / N).double()
IDENTITY = torch.eye(N).double()
CAUSAL_UNIFORM = normalized_rows(torch.ones(N, N).double().tril())


def random_attention(*shape, scale=1.0):
    return (scale * torch.randn(*shape, dtype=torch.float64)).softmax(-1)


def test_entropy():
    assert entropy(UNIFORM).item() == pytest.approx(math.log2(N), rel=1e-14)  # float64 throughout
    assert entropy(IDENTITY).item() == 0
    expected = sum(math.log2(i + 1) for i in range(N)) / N
    assert entropy(CAUSAL_UNIFORM).item() == pytest.approx(expected)
    assert relative_entropy(CAUSAL_UNIFORM).item() == pytest.approx(1)
    assert entropy(random_attention(2, 3, N, N)).shape == (2, 3)


def test_rows_in_three_forms():
    matrix = torch.tensor([[2.0, -1.0, 1.0], [0.0, 0.0, 0.0], [1.0, 1.0, 2.0]])
    found = normalized_rows(matrix)
    assert found.tolist() == [[0.5, 0.25, 0.25], [0, 0, 0], [0.25, 0.25, 0.5]]
    assert zero_rows(matrix).tolist() == [False, True, False]
    assert negative_share(matrix).item() == pytest.approx(1 / 8)
    assert normalized_rows(matrix[:1], "sum").tolist() == [[1, -0.5, 0.5]]
    small = torch.tensor([[1e-5, 1e-5]])
    torch.testing.assert_close(normalized_rows(small, "sum"), torch.tensor([[0.1, 0.1]]))
    assert torch.equal(normalized_rows(matrix, "raw"), matrix)
    stochastic = random_attention(N, N)
    torch.testing.assert_close(normalized_rows(stochastic), stochastic)
    # A row of zeros, as padding is, changes no mean.
    assert entropy(matrix).item() == pytest.approx(1.5)
    with pytest.raises(UserError, match="choose one of abs, sum, raw"):
        normalized_rows(matrix, "mean")


@pytest.mark.parametrize("size", [2, 40, 80])
def test_spectral_gap_of_known_matrices(size):
    """Below and above the size from which on ARPACK is used."""
    eye = torch.eye(size).double()
    rank_one = torch.ones(size, 1).double() @ random_attention(1, size)
    found = spectral_gap(torch.stack([eye, eye.roll(1, 0), rank_one]))
    assert found.tolist() == pytest.approx([0, 0, 1], abs=1e-7)
    matrix = random_attention(2, 3, size, size)
    exact = 1 - torch.linalg.eigvals(matrix).abs().sort(-1).values[..., -2]
    torch.testing.assert_close(spectral_gap(matrix), exact, rtol=1e-8, atol=1e-8)
    padded = torch.nn.functional.pad(matrix, (0, 3, 0, 3))
    torch.testing.assert_close(spectral_gap(padded), exact, rtol=1e-8, atol=1e-8)


def test_spectral_gap_of_two_states_blocks_and_causal_matrices():
    a, b = 0.3, 0.2
    assert spectral_gap(torch.tensor([[1 - a, a], [b, 1 - b]])).item() == pytest.approx(a + b)
    blocks = torch.block_diag(random_attention(40, 40), random_attention(40, 40))
    assert spectral_gap(blocks).item() == pytest.approx(0, abs=1e-7)
    assert spectral_gap(CAUSAL_UNIFORM).item() == pytest.approx(0.5)
    assert spectral_gap(torch.ones(1, 1)).item() == 1


@pytest.mark.parametrize("size", [30, 90])
def test_spectral_gap_of_linear_attention(size):
    phi_q, phi_k = (torch.randn(size, 8, dtype=torch.float64).exp() for _ in range(2))
    matrix = normalized_rows(phi_q @ phi_k.mT)
    assert linear_spectral_gap(phi_q, phi_k) == pytest.approx(spectral_gap(matrix).item(), abs=1e-8)
    assert linear_spectral_gap(phi_q[:, :1], phi_k[:, :1]) == 1
    phi_q[3] = 0  # as ReLU makes it
    matrix = normalized_rows(phi_q @ phi_k.mT)
    assert linear_spectral_gap(phi_q, phi_k) == pytest.approx(spectral_gap(matrix).item(), abs=1e-8)


def test_no_spectral_gap_without_finite_entries():
    matrix = random_attention(2, 80, 80)
    matrix[0, 5, 5] = math.nan
    assert spectral_gap(matrix).isnan().tolist() == [True, False]
    assert math.isnan(linear_spectral_gap(matrix[0], matrix[1]))


def test_bias_scales_the_second_eigenvalue_and_singular_values_bound_it():
    matrix = random_attention(80, 80, scale=2.0)
    gap, e = spectral_gap(matrix).item(), 0.6
    sink = torch.zeros(80, 80).double()
    sink[:, 7] = 1
    assert 1 - spectral_gap((1 - e) * sink + e * matrix).item() == pytest.approx(e * (1 - gap))
    assert top_singular_value(matrix).item() > 1 - gap
    symmetric = (torch.eye(80).double().roll(1, 0) + torch.eye(80).double().roll(-1, 0)) / 3
    symmetric = symmetric + torch.eye(80).double() / 3  # doubly stochastic
    assert top_singular_value(symmetric).item() == pytest.approx(1 - spectral_gap(symmetric).item())
    both = torch.stack([matrix, symmetric])
    padded = torch.nn.functional.pad(both, (0, 3, 0, 3))
    torch.testing.assert_close(top_singular_value(padded), top_singular_value(both))
    assert top_singular_value(torch.zeros(2, 3, 3)).tolist() == [0, 0]


def test_temperature():
    q, k = (sigma * torch.randn(1500, 16, dtype=torch.float64) for sigma in (0.7, 1.3))
    scores = q @ k.mT / 4
    assert temperature(scores).item() == pytest.approx(1 / (0.7 * 1.3), rel=0.03)
    shifted = scores + 5 * torch.randn(1500, 1, dtype=torch.float64)
    assert row_temperature(shifted).item() == pytest.approx(row_temperature(scores).item())
    assert temperature(shifted).item() < 0.5 * temperature(scores).item()
    assert math.isinf(temperature(torch.zeros(3, 3)).item())
    visible = torch.ones(1500, 1500).tril().bool()
    assert temperature(scores, visible).item() == pytest.approx(1 / scores[visible].std().item(), rel=1e-6)


def test_lln_temperature():
    a, b = 0.14855178144710912, -0.35487039130661086
    for sigma_q, sigma_k in ((0.8, 1.1), (1.5, 0.4)):
        s = math.sqrt(((sigma_q * sigma_k) ** 2 - b) / (2 * a))
        found = lln_temperature(s / sigma_q, s / sigma_k, sigma_q, sigma_k, a, b)
        assert found == pytest.approx(1 / (sigma_q * sigma_k))
    assert math.isnan(lln_temperature(1, 1, 1, 1, a, b))
    assert -b / a == pytest.approx(2.39, abs=0.005)


def test_log_normality_tells_normal_from_other_shapes():
    normal = log_normality(2 * torch.randn(40_000, dtype=torch.float64) - 3)
    assert normal.distance < 0.01 and normal.correlation > 0.999 and abs(normal.skew) < 0.05
    assert normal.mean == pytest.approx(-3, abs=0.05) and normal.variance == pytest.approx(4, rel=0.05)
    skewed = log_normality(torch.rand(40_000, dtype=torch.float64).log())
    assert skewed.distance > 0.1 and skewed.skew < -1.5 and skewed.correlation < 0.95
    assert log_normality(torch.tensor([-torch.inf, 0.0, 1.0, 2.0])).count == 3
    with pytest.raises(ValueError, match="fewer than two different values"):
        log_normality(torch.ones(4))


def test_fenton_is_exact_for_one_term_and_close_for_small_variances():
    assert fenton(0.7, 1) == pytest.approx((0, 0.7))
    sums = (0.2**0.5 * torch.randn(20_000, 64, dtype=torch.float64)).logsumexp(-1)
    mean, variance = fenton(0.2, 64)
    assert sums.mean().item() == pytest.approx(mean, abs=0.002)
    assert sums.var().item() == pytest.approx(variance, rel=0.05)


def test_local_score():
    widths = window_widths(N, [0.01, 0.1, 0.5, 1])
    assert widths == [1, 6, 32, 64]
    assert local_score(IDENTITY, widths).tolist() == [1, 1, 1, 1]
    assert local_score(UNIFORM, widths).tolist() == pytest.approx([w / N for w in widths])
    every = list(range(1, N + 1))
    assert local_score(UNIFORM, every).mean().item() == pytest.approx((N + 1) / (2 * N))
    scores = local_score(random_attention(2, N, N), every)
    assert scores.shape == (2, N)
    assert (scores.diff(dim=-1) > -1e-12).all()
    torch.testing.assert_close(scores[:, -1], torch.ones(2).double())
    blocks = torch.block_diag(*[random_attention(16, 16)] * 4)
    assert local_score(blocks, [32]).item() == pytest.approx(1)


def test_local_score_by_its_definition():
    matrix, w = random_attention(9, 9), 4
    expected = 0.0
    for i in range(9):
        start = min(max(i - w // 2, 0), 9 - w)
        expected += matrix[i, start : start + w].sum().item() / 9
    assert local_score(matrix, [w]).item() == pytest.approx(expected)


def test_causal_local_score():
    ratios = [0.25, 0.5, 1]
    found = causal_local_score(CAUSAL_UNIFORM, ratios)
    expected = [sum(math.ceil(r * (i + 1)) / (i + 1) for i in range(N)) / N for r in ratios]
    assert found.tolist() == pytest.approx(expected)
    assert causal_local_score(IDENTITY, ratios).tolist() == [1, 1, 1]


def sink_on_the_first_token():
    matrix = torch.zeros(N, N)
    matrix[:, 0] = 1
    return matrix


# Each with the x of the authors' code; by the definition of the text they would be 0.505, 3/64 and 2/64.
@pytest.mark.parametrize(
    ("matrix", "threshold", "expected", "tolerance"),
    [
        (UNIFORM, 50, 0.5464, 5e-5),
        (IDENTITY.roll(1, 1), 50, 5.875 / 64, 1e-9),
        (IDENTITY.roll(-1, 1), 50, 4.906 / 64, 1e-5),
        (sink_on_the_first_token(), 50, 0.9846, 1e-4),
        (sink_on_the_first_token(), 1, 0.9846, 1e-4),
        (IDENTITY, 1, 1 / 64, 1e-9),
        (IDENTITY, 99, 1 / 64, 1e-9),
        (torch.where(torch.arange(N)[:, None] < N // 2, IDENTITY, UNIFORM), 50, 0.28, 0.005),
    ],
    ids=["uniform", "next", "previous", "sink", "sink-low", "identity", "identity-high", "mixture"],
)
def test_golden_values_of_appendix_f(matrix, threshold, expected, tolerance):
    x, y = appendix_f_curve(matrix)
    assert x.shape == y.shape == (100,) and x[0] == 0
    assert y[50].item() == pytest.approx(0.505, abs=5e-4)
    assert x[threshold].item() == pytest.approx(expected, abs=tolerance)


def test_appendix_f_with_blocks_depends_on_how_they_are_saved():
    blocks = torch.block_diag(*[torch.full((64, 64), 1 / 64)] * 8)
    as_saved = torch.full((512, 64), 1 / 64)
    assert appendix_f_curve(as_saved)[0][50].item() == pytest.approx(0.55, abs=0.005)
    assert appendix_f_curve(blocks)[0][50].item() == pytest.approx(0.08, abs=0.005)


def test_appendix_f_averages_widths_not_scores():
    mixture = torch.where(torch.arange(N)[:, None] < N // 2, IDENTITY, UNIFORM)
    assert local_score(mixture, [round(0.28 * N)]).item() == pytest.approx(0.64, abs=0.005)


def test_relative_deviation():
    assert relative_deviation([2.0] * 5) == 0
    assert relative_deviation([1, 3] * 10) == pytest.approx(0.5)
    for values in ([], [1.0, -1.0]):
        with pytest.raises(ValueError, match="mean other than 0"):
            relative_deviation(values)
