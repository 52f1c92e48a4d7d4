"""The PyTorch backend in torch's deterministic mode, which refuses some of CUDA's operations."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from causal_linear_attention import causal_linear_attention, chunked
from tests.helpers.definition import draw, run
from tests.operator.test_kernels import kernel

# https://docs.pytorch.org/docs/stable/generated/torch.use_deterministic_algorithms.html, as far as an
# attention may come across them.
REFUSED = {"bincount", "histc", "kthvalue", "median", "put_", "cumprod"}


class AsOnAGpu(TorchDispatchMode):
    """Refuses the operators that CUDA refuses in deterministic mode."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        out = func(*args, **(kwargs or {}))
        if name in REFUSED or (name in ("cumsum", "cumsum_") and out.is_floating_point()):
            raise RuntimeError(f"{name} does not have a deterministic implementation")
        return out


@pytest.fixture
def not_looked_at(monkeypatch):
    """On a GPU nobody looks whether the numbers are finite."""
    monkeypatch.setattr(chunked, "_surely_finite", lambda *tensors: False)


@pytest.mark.parametrize("normalize", [False, True], ids=["plain", "normalize"])
@pytest.mark.parametrize("cu_seqlens", [None, [0, 3, 3, 70]], ids=["rows", "packed"])
def test_nothing_is_computed_that_a_gpu_refuses(not_looked_at, cu_seqlens, normalize):
    q, k, v, *_ = draw((1, 2, 70, 5, 6), torch.float32, normalize)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    packed = None if cu_seqlens is None else torch.tensor(cu_seqlens, dtype=torch.int32)
    with AsOnAGpu():
        out = causal_linear_attention(*leaves, normalize=normalize, cu_seqlens=packed, backend="torch")
        grads = torch.autograd.grad(out.square().sum(), leaves, create_graph=True)
        torch.autograd.grad(sum(x.square().sum() for x in grads), leaves)


def test_the_check_finds_a_cumsum_of_floats():
    with AsOnAGpu(), pytest.raises(RuntimeError, match="cumsum"):
        torch.ones(3).cumsum(0)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("reverse", [False, True], ids=["forwards", "backwards"])
def test_a_value_that_is_not_finite_spreads_in_one_direction(reverse, value):
    v = torch.randn(2, 7, 3)
    v[1, 4, 2] = value
    found = chunked._spread(v, reverse)
    expected = torch.zeros_like(v)
    expected[1, slice(None, 5) if reverse else slice(4, None), 2] = float("nan")
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("normalize", [False, True], ids=["plain", "normalize"])
def test_heads_too_wide_for_the_kernels_in_deterministic_mode(normalize):
    given = [x.cuda() for x in draw((1, 2, 70, 130, 6), torch.float32, normalize)]
    torch.use_deterministic_algorithms(True)
    try:
        first, second = (run(kernel("torch", normalize), *given) for _ in range(2))
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(x, y) for x, y in zip(first, second, strict=True))
