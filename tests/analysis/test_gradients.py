"""TransNormer's equations 7 to 15 and Appendices B to D, including bounds that are false."""

import math

import pytest
import torch

from user_dir.analysis.gradients import (
    linear_score_gradients,
    norm_bound,
    paper_softmax_bound,
    rms_norm_beside,
    rms_norm_inside,
    softmax_bound,
    softmax_score_gradients,
)
from user_dir.attention.parts.features import one_plus_elu

ROWS, KEYS, WIDTH = 200, 6, 8


def paper_norm_bound(c1: float, c2: float, width: int, eps: float) -> float:
    """`3 c1 c2 d / (2 sqrt(eps))` (eq. 15 and 61), epsilon inside the root of RMSNorm."""
    return 1.5 * c1 * c2 * width / math.sqrt(eps)


def draws(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def over_their_sum(scores):
    return scores / scores.sum(-1, keepdim=True)


def derivatives(scores):
    """dP_i/ds_j of the weights of softmax and of those divided by their sum, by the closed forms."""
    each = torch.eye(len(scores), dtype=torch.float64)
    softmax = softmax_score_gradients(scores.softmax(-1), each)
    return softmax, linear_score_gradients(over_their_sum(scores), each, scores.sum())


@pytest.mark.parametrize("scale", [0.1, 1.0, 30.0])
def test_derivatives_of_weights(scale):
    """Equations 8 to 11: at most 1/4, and at most 1 / (4 s_k)."""
    for _ in range(20):
        scores = scale * draws(KEYS).abs()
        softmax, linear = derivatives(scores)
        assert softmax.abs().max() <= 0.25 + 1e-12
        assert (linear.abs() * 4 * scores).max() <= 1 + 1e-9


def test_both_bounds_are_reached_by_two_equal_scores():
    softmax, linear = derivatives(torch.full((2,), 0.7, dtype=torch.float64))
    assert softmax.abs().max().item() == pytest.approx(0.25)
    assert (linear.abs().max() * 4 * 0.7).item() == pytest.approx(1)


def test_proposition_3_1():
    """1+elu with q = k = -t: the derivative is exactly e^(2t) (1 - 1/n) / (d n)."""
    t, n, d = 10.0, 16, 8
    features = one_plus_elu(torch.full((n, d), -t, dtype=torch.float64))
    found = derivatives(features[0] @ features.T)[1].diagonal().max().item()
    assert found == pytest.approx(math.exp(2 * t) * (1 - 1 / n) / (d * n), rel=1e-6)
    assert found == pytest.approx(3.55e6, rel=0.001)


def gradients(scores, v, towards, weigh):
    """Autograd's dL/ds for `O = weigh(s) v` and `dL/dO = towards`."""
    scores = scores.clone().requires_grad_()
    (weigh(scores) @ v * towards).sum().backward()
    return scores.grad


def test_closed_forms():
    scores, v, towards = draws(5, KEYS).abs(), draws(KEYS, WIDTH), draws(5, WIDTH)
    products = towards @ v.T
    weights = scores.softmax(-1)
    found = gradients(scores, v, towards, lambda s: s.softmax(-1))
    torch.testing.assert_close(softmax_score_gradients(weights, products), found, rtol=1e-12, atol=1e-14)
    weights, total = over_their_sum(scores), scores.sum(-1, keepdim=True)
    found = gradients(scores, v, towards, over_their_sum)
    torch.testing.assert_close(
        linear_score_gradients(weights, products, total), found, rtol=1e-12, atol=1e-14
    )


@pytest.mark.parametrize("norm", [rms_norm_inside, rms_norm_beside])
def test_closed_form_and_bounds_of_norm_attention(norm):
    """dL/ds is the gradient before RMSNorm times v; the bounds hold at any scale of the scores."""
    eps, inside = 1e-8, norm is rms_norm_inside
    for scale in (1.0, 1e-4, 1e-8, 1e-12):
        scores = (scale * draws(5, KEYS)).requires_grad_()
        v, towards = draws(KEYS, WIDTH), draws(5, WIDTH)
        mixed = scores @ v
        mixed.retain_grad()
        (norm(mixed, eps) * towards).sum().backward()
        torch.testing.assert_close(scores.grad, mixed.grad @ v.T)
        c1, c2 = towards.norm(dim=-1).max().item(), v.norm(dim=-1).max().item()
        largest = scores.grad.abs().max().item()
        assert largest <= norm_bound(c1, c2, eps, inside) * (1 + 1e-9)
        if inside:
            assert largest <= paper_norm_bound(c1, c2, WIDTH, eps)


def test_rms_norm_beside_is_that_of_the_models():
    from user_dir.modules import RMSNorm

    x = draws(3, WIDTH)
    torch.testing.assert_close(RMSNorm()(x), rms_norm_beside(x, RMSNorm.eps))


@pytest.mark.parametrize(("keys", "holds"), [(2, False), (3, False), (4, True), (9, True)])
def test_softmax_bounds(keys, holds):
    """Equation 59 is false for 2 and 3 keys; c1 c2 / 2 is true and reached for any number."""
    largest = 0.0
    v = torch.zeros(keys, WIDTH, dtype=torch.float64)
    v[0, 0], v[1:, 0] = 1, -1
    towards = torch.zeros(1, WIDTH, dtype=torch.float64)
    towards[0, 0] = 1
    for share in torch.linspace(0.01, 0.99, 99).tolist():
        rest = torch.full((keys - 1,), (1 - share) / (keys - 1), dtype=torch.float64)
        weights = torch.cat([torch.tensor([share], dtype=torch.float64), rest])[None]
        largest = max(largest, softmax_score_gradients(weights, towards @ v.T).abs().max().item())
    assert largest == pytest.approx(softmax_bound(1, 1))
    assert (largest <= paper_softmax_bound(1, 1, keys) + 1e-12) is holds
