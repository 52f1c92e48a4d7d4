"""The steps between matrix products as nvcc compiles them, executed by the interpreter: a CPU's results."""

import pytest
import torch

from causal_linear_attention import extension, fused
from tests.helpers import emulation
from tests.operator.ptx.test_decoding_in_ptx import check
from tests.operator.test_fused import close

pytestmark = [
    pytest.mark.slow,
    pytest.mark.exhaustive,
    pytest.mark.skipif(not extension.loaded("cpp"), reason=extension.reason("cpp") or "loaded"),
]
dtypes = pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16], ids=lambda x: str(x)[6:]
)


def compare(interpreter, file, call, names, expected, dtype):
    found, machines = interpreter.run_file(file, call)
    check(machines, names)
    for x, y in zip(found, expected, strict=True):
        close(x.view_as(y), y, dtype)


def rotation(dim):
    direction = torch.randn(dim)
    return direction / direction.norm(), torch.randn(dim // 2)


@dtypes
@pytest.mark.parametrize(("rows", "width"), [(19, 70), (3, 33)])
def test_residual_and_norm(interpreter, dtype, rows, width):
    x, y, grad_sum, grad_out = torch.randn(4, rows, width).to(dtype).unbind(0)
    seed, p = fused.new_seed("cpu"), 0.3
    total, out, root = fused.residual(x, y, seed, p, 1e-8, True, True)
    expected = total, out, root, *fused.residual_backward(grad_sum, grad_out, out, root, seed, p, 1e-8)

    def call(library):
        return emulation.residual(library, x, y, seed, p, grad_sum, grad_out)

    names = ["residual_kernel", "residual_gradient_kernel"]
    compare(interpreter, "fused", call, names, expected, dtype)


@dtypes
def test_gated_unit(interpreter, dtype):
    inputs, grad = torch.randn(19, 2 * 33 + 5).to(dtype)[:, :66], torch.randn(19, 33).to(dtype)
    expected = fused.gated(inputs), *fused.gated_backward(grad, inputs)
    names = ["gated_kernel", "gated_gradient_kernel"]
    compare(interpreter, "fused", lambda x: emulation.gated(x, inputs, grad), names, expected, dtype)


@dtypes
@pytest.mark.parametrize(("length", "batch", "heads", "dim", "map"), [(18, 2, 1, 5, 1), (3, 1, 2, 40, 2)])
def test_features(interpreter, dtype, length, batch, heads, dim, map):
    """Features of two parts, and of more pairs of channels than half a warp has lanes."""
    grads = list(torch.randn(3, batch, heads, length, dim).to(dtype).unbind(0))
    given = torch.randn(length, batch, 3 * heads * dim).to(dtype), *rotation(dim), heads, map, 0.7
    expected = *fused.features(*given), *fused.features_backward(*grads, *given)
    names = ["features_kernel", "features_gradient_kernel"]
    compare(interpreter, "fused", lambda x: emulation.features(x, *given, grads), names, expected, dtype)


@dtypes
@pytest.mark.parametrize(
    ("length", "batch", "heads", "dim", "size"),
    [(11, 2, 1, 5, 6), (38, 1, 1, 34, 38)],
    ids=["small", "large"],
)
@pytest.mark.parametrize("causal", [False, True])
def test_blocks(interpreter, dtype, length, batch, heads, dim, size, causal):
    """Several blocks, the last one shorter, and one with more positions and columns than a warp has lanes."""
    padding = None if causal else torch.arange(length) >= torch.arange(1, batch + 1)[:, None] * length // 3
    qkv, grad = torch.randn(length, batch, 3 * heads * dim), torch.randn(length, batch, heads * dim).to(dtype)
    options = heads, size, 0.7, causal, not causal, padding, fused.new_seed("cpu"), 0.3
    given = qkv.to(dtype), *rotation(dim), *options
    expected = fused.blocks(*given), *fused.blocks_backward(grad, *given)
    names = ["blocks_kernel", "blocks_gradient_kernel"]
    compare(interpreter, "blocks", lambda x: emulation.blocks(x, *given, grad), names, expected, dtype)
