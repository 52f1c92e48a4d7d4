"""Inputs at the edge: equal tokens, one real token among padding or none, large values."""

from itertools import product

import pytest
import torch

from tests.helpers.cases import case
from tests.helpers.mechanisms import MECHANISMS, all_forms, build, forms_of

DTYPES = (torch.float32, torch.bfloat16)
# Those of encoders that know no positions: nothing tells equal tokens apart.
WITHOUT_POSITIONS = ("bigbird", "informer", "kernelized", "linformer", "longformer", "reformer", "skyformer")
# The map of a first token's value, which is all that the token sees where it is alone.
VALUES = {"reformer": "value", "bigbird": "v_proj", "longformer": "v_proj_global", "informer": "v_proj"}


def finite(module, x, padding=None):
    """The output, after asserting that it and the gradients are finite, and zero at padding."""
    x = x.requires_grad_()
    out, _ = module(x, key_padding_mask=padding)
    real = out if padding is None else out.masked_fill(padding.t().unsqueeze(-1), 0)
    real.float().square().sum().backward()
    assert torch.isfinite(out).all() and torch.isfinite(x.grad).all()
    assert all(torch.isfinite(p.grad).all() for p in module.parameters() if p.grad is not None)
    assert padding is None or (x.grad[padding.t()] == 0).all()
    return out


@all_forms
def test_equal_tokens(key, causal):
    for dtype in DTYPES:
        with case(dtype):
            check_equal_tokens(key, causal, dtype)


def check_equal_tokens(key, causal, dtype):
    finite(build(key, causal, dtype), torch.zeros(70, 2, 12, dtype=dtype))
    module, name = build(key, causal, dtype), MECHANISMS[key].name
    x = torch.randn(1, 2, 12, dtype=dtype).repeat(100, 1, 1)
    out = finite(module, x)
    tolerance = 1e-5 if dtype == torch.float32 else 0.02
    if name in WITHOUT_POSITIONS and not causal:
        same = out[name == "longformer" :]  # its first token has separate maps
        torch.testing.assert_close(same, same[:1].expand_as(same), rtol=tolerance, atol=tolerance)
    if name == "informer":
        torch.testing.assert_close(out, module.out_proj(module.v_proj(x)), rtol=tolerance, atol=tolerance)


@all_forms
def test_one_real_token_among_padding_and_none_at_all(key, causal):
    for dtype, tolerance in ((torch.float64, 1e-9), (torch.float32, 2e-4), (torch.bfloat16, 0.05)):
        with case(dtype):
            check_one_real_token(key, causal, dtype, tolerance)


def check_one_real_token(key, causal, dtype, tolerance):
    module, name = build(key, causal, dtype), MECHANISMS[key].name
    x = torch.randn(70, 3, 12, dtype=dtype)
    padding = torch.arange(70) >= torch.tensor([[1], [30], [0]])
    out = finite(module, x, padding)
    alone = x[:1, :1]
    expected = (
        module.out_proj(module.get_submodule(VALUES[name])(alone)) if name in VALUES else module(alone)[0]
    )
    torch.testing.assert_close(out[:1, :1], expected, rtol=tolerance, atol=tolerance)


@forms_of("diag", without=("diag-softmax", "diag-1"))
@pytest.mark.parametrize("autocast", [False, True], ids=["half", "autocast"])
@torch.no_grad()
def test_sums_before_a_norm_in_float16(key, causal, autocast):
    module = build(key, causal, dim=128)
    x = 80 * torch.randn(64, 1, 128)
    expected, state = module(x)[0], {}
    if not autocast:
        module, x = module.half(), x.half()
    with torch.autocast("cpu", torch.float16, enabled=autocast):
        outs = [module(x)[0]]
        if causal:
            outs.append(torch.cat([module(part, incremental_state=state)[0] for part in x.split([60, 1, 3])]))
    for out in outs:
        assert (out - expected).norm() < 0.02 * expected.norm()


@all_forms
def test_large_values(key, causal):
    x = torch.randn(150, 2, 12, generator=torch.Generator().manual_seed(5))
    for dtype, kind in product(DTYPES, ("signs", "normal")):
        with case(dtype, kind):
            finite(build(key, causal, dtype), ((x.sign() if kind == "signs" else x) * 30).to(dtype))
