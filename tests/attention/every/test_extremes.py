"""Inputs at the edge: equal tokens, one real token among padding, large values."""

import pytest
import torch

from tests.helpers.mechanisms import all_forms, build

dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])


def finite(module, x, padding=None):
    """The output, after asserting that it and the gradients are finite."""
    x = x.requires_grad_()
    out, _ = module(x, key_padding_mask=padding)
    out.float().sum().backward()
    assert torch.isfinite(out).all() and torch.isfinite(x.grad).all()
    assert all(torch.isfinite(p.grad).all() for p in module.parameters() if p.grad is not None)
    return out


@all_forms
@dtypes
def test_equal_tokens(key, causal, dtype):
    finite(build(key, causal, dtype), torch.randn(1, 2, 12, dtype=dtype).repeat(70, 1, 1))
    finite(build(key, causal, dtype), torch.zeros(70, 2, 12, dtype=dtype))


@all_forms
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float64, 1e-9), (torch.float32, 2e-4), (torch.bfloat16, 0.05)],
    ids=["f64", "f32", "bf16"],
)
def test_one_real_token_among_padding(key, causal, dtype, tolerance):
    module = build(key, causal, dtype)
    x = torch.randn(70, 2, 12, dtype=dtype)
    padding = torch.arange(70).expand(2, -1) >= 1
    out = finite(module, x, padding)
    torch.testing.assert_close(out[:1], module(x[:1])[0], rtol=tolerance, atol=tolerance)


@all_forms
@dtypes
def test_large_values(key, causal, dtype):
    generator = torch.Generator().manual_seed(5)
    signs = torch.randint(0, 2, (150, 2, 12), generator=generator) * 2.0 - 1
    finite(build(key, causal, dtype), (signs * 30).to(dtype))
