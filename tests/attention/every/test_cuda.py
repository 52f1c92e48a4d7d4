"""Every mechanism on a GPU: values, gradients and decoding are a CPU's, in half precision near them."""

import copy
from itertools import product

import pytest
import torch

from tests.helpers.cases import case
from tests.helpers.mechanisms import MECHANISMS, all_forms, build, causal_mechanisms, ragged

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
]
DIM, LENGTH = 64, 150  # heads of 32, which the kernels take


def pair(key, causal, dtype):
    """The same module on the CPU and on the GPU."""
    module = build(key, causal, dtype, dim=DIM)
    return module, copy.deepcopy(module).cuda()


def rows_and_padding(dtype):
    """Three rows, and which of their positions, `(N, B)`, are padding."""
    return torch.randn(LENGTH, 3, DIM, dtype=dtype), ragged(LENGTH, 3)[1].t()


def error(got, expected):
    """The norm of the difference over that of the expected value, or over 1.

    Under softmax the gradient of the keys' bias is zero but for rounding.
    """
    got, expected = got.cpu().to(expected.dtype), expected.detach()
    return (got - expected).norm() / expected.norm().clamp(min=1)


@all_forms
def test_values_and_gradients(key, causal):
    for (dtype, tolerance), training in product(
        ((torch.float64, 1e-9), (torch.float32, 2e-4)), (False, True)
    ):
        if dtype == torch.float64 or MECHANISMS[key].continuous:  # rounding may change which tokens are seen
            with case(dtype, "in training" if training else "in evaluation"):
                check_values_and_gradients(key, causal, dtype, tolerance, training)


def check_values_and_gradients(key, causal, dtype, tolerance, training):
    x, padding = rows_and_padding(dtype)
    weights = torch.randn_like(x)[~padding]
    results = []
    for module in pair(key, causal, dtype):
        device = next(module.parameters()).device
        given, real = x.to(device, copy=True).requires_grad_(), ~padding.to(device)
        out = module.train(training)(given, key_padding_mask=~real.t())[0][real]
        (out * weights.to(device)).sum().backward()
        gradients = [p.grad for p in module.parameters() if p.grad is not None]
        results.append([out.detach(), given.grad, *gradients])
    for expected, got in zip(*results, strict=True):
        assert got.device.type == "cuda"
        assert error(got, expected) <= tolerance


@causal_mechanisms
@torch.no_grad()
def test_decoding(key):
    for dtype, tolerance in ((torch.float64, 1e-9), (torch.float32, 2e-4)):  # whose steps are kernels
        if dtype == torch.float64 or MECHANISMS[key].continuous:
            module = pair(key, True, dtype)[1]
            x = torch.randn(LENGTH, 2, DIM, dtype=dtype, device="cuda")
            state: dict = {}
            steps = [module(piece, incremental_state=state)[0] for piece in x.split([100, *[1] * 30, 20])]
            torch.testing.assert_close(torch.cat(steps), module(x)[0], rtol=tolerance, atol=tolerance)


@all_forms
def test_half_precision(key, causal):
    for how in ("autocast", "bfloat16", "float16"):
        with case(how):
            check_half_precision(key, causal, how)


def check_half_precision(key, causal, how):
    cpu, gpu = pair(key, causal, torch.float32)
    autocast = how == "autocast"
    dtype = torch.float32 if autocast else getattr(torch, how)
    x, padding = rows_and_padding(torch.float32)
    given, real = x.cuda().to(dtype).requires_grad_(), ~padding.cuda()
    with torch.autocast("cuda", dtype=torch.bfloat16, enabled=autocast):
        out = gpu.to(dtype)(given, key_padding_mask=~real.t())[0][real]
    out.float().square().mean().backward()
    gradients = [given.grad, *(p.grad for p in gpu.parameters() if p.grad is not None)]
    assert all(torch.isfinite(gradient).all() for gradient in gradients)
    expected = cpu(x, key_padding_mask=padding.t())[0][~padding]
    assert not MECHANISMS[key].continuous or error(out, expected) < 0.1  # TNN in bfloat16: 0.06
