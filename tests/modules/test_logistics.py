"""The mixture of discretised logistics: a distribution, exact at its edges, and its samples."""

import math

import pytest
import torch

from user_dir.modules.logistics import logistic_mixture_log_prob, logistic_mixture_sample, pick


def every_level(outputs, count):
    return logistic_mixture_log_prob(outputs[..., None, :], torch.arange(count), count)


def defined(outputs, level, count):
    """The definition in float64: a difference of two logistic functions."""
    total = 0.0
    logits, means, raw = outputs.double().chunk(3)
    for share, mean, r in zip(torch.softmax(logits, 0).tolist(), means.tolist(), raw.tolist(), strict=True):
        scale = math.exp(min(max(r, -7), 7))
        upper, lower = (
            1 / (1 + math.exp(-(2 * level / (count - 1) - 1 + side / (count - 1) - mean) / scale))
            for side in (1, -1)
        )
        total += share * ((1.0 if level == count - 1 else upper) - (0.0 if level == 0 else lower))
    return total


@pytest.mark.parametrize("count", [2, 17, 256])
def test_sums_to_one(count):
    outputs = 16 * torch.rand(50, 12) - 8
    torch.testing.assert_close(every_level(outputs, count).exp().sum(-1), torch.ones(50), rtol=0, atol=1e-6)
    total = every_level(outputs.double(), count).exp().sum(-1)
    torch.testing.assert_close(total, torch.ones(50, dtype=torch.float64), rtol=0, atol=1e-13)


@pytest.mark.parametrize("count", [2, 17, 256])
def test_equals_the_definition_at_the_edges_and_inside(count):
    for seed in range(20):
        outputs = torch.randn(9, generator=torch.Generator().manual_seed(seed))
        for level in {0, 1, count // 2, count - 2, count - 1}:
            found = logistic_mixture_log_prob(outputs, torch.tensor(level), count).exp()
            assert float(found) == pytest.approx(defined(outputs, level, count), rel=2e-5)


def test_known_values():
    bits = every_level(torch.zeros(30, dtype=torch.float64), 256) / -math.log(2)
    assert float(2 ** -bits[0]) == pytest.approx(0.269713, abs=1e-6)
    assert (float(bits[128]), float(bits.mean())) == (
        pytest.approx(8.9944, abs=1e-4),
        pytest.approx(9.0544, abs=1e-4),
    )
    wide = every_level(torch.tensor([0.0, 0.0, 50.0]), 256).exp()
    assert float(wide[0]) == pytest.approx(0.49977, abs=1e-5) == float(wide[255])
    narrow = torch.tensor([0.0, 2 * 100 / 255 - 1, -50.0], dtype=torch.float64)
    assert float(every_level(narrow, 256)[100].exp()) == pytest.approx(math.tanh(math.exp(7) / 510), abs=1e-9)


def test_gradients():
    extreme = torch.tensor([[0.0, 1e4, 50.0], [0.0, -1e4, -50.0], [0.0, 0.3, -50.0]], requires_grad=True)
    every_level(extreme, 256).sum().backward()
    assert torch.isfinite(extreme.grad).all()
    outputs = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: every_level(x, 5), outputs)


def test_half_precision_is_computed_in_float32():
    outputs = torch.randn(8, 30)
    for dtype in (torch.bfloat16, torch.float16):
        found = every_level(outputs.to(dtype), 256)
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, every_level(outputs.to(dtype).float(), 256))


def test_draws_follow_the_probabilities():
    generator = torch.Generator().manual_seed(0)
    outputs = torch.tensor([0.3, -0.5, -0.4, 0.6, -2.0, -1.0])
    uniform = torch.rand(400_000, 2, generator=generator, dtype=torch.float64)
    drawn = logistic_mixture_sample(outputs.expand(400_000, 6), uniform, 17)
    shares = torch.bincount(drawn, minlength=17) / 400_000
    assert (shares - every_level(outputs, 17).exp()).abs().sum() / 2 < 0.01
    assert {int(x) for x in drawn.unique()} <= set(range(17))


def test_picking_at_the_ends():
    shares = torch.tensor([[0.25, 0.0, 0.75]]).expand(4, 3)
    assert pick(shares, torch.tensor([0.0, 0.24, 0.25, 0.999999])).tolist() == [0, 0, 2, 2]
