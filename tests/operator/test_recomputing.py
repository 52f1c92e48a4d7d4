"""In half precision bidirectional linear attention keeps its inputs alone, and gives the same to the bit."""

import pytest
import torch

from causal_linear_attention import functional, linear_attention
from tests.helpers.counting import kept_for_backward

HALF = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])


def draw(dtype, batch=2):
    return [(torch.rand(batch, 3, 50, 16) + 0.1).to(dtype).requires_grad_() for _ in "qkv"]


@HALF
@pytest.mark.parametrize("given", ["plain", "padding", "packed"])
def test_values_first_and_second_derivatives_are_the_same(dtype, given, monkeypatch):
    q, k, v = draw(dtype, batch=1 if given == "packed" else 2)
    options = {
        "plain": {},
        "padding": {"padding_mask": torch.arange(50) >= torch.tensor([[50], [31]])},
        "packed": {"cu_seqlens": torch.tensor([0, 7, 50], dtype=torch.int32)},
    }[given]

    def everything():
        out = linear_attention(q, k, v, normalize=True, **options)
        first = torch.autograd.grad(out.float().square().sum(), (q, k, v), create_graph=True)
        return [out, *first, *torch.autograd.grad(sum(x.float().square().sum() for x in first), (q, k, v))]

    got = everything()
    monkeypatch.setattr(functional, "recomputed", lambda function, *args: function(*args))
    for a, b in zip(got, everything(), strict=True):
        assert torch.equal(a, b)


@HALF
def test_only_the_inputs_are_kept(dtype):
    q, k, v = draw(dtype)
    assert kept_for_backward(lambda: linear_attention(q, k, v, normalize=True)) == 3 * q.numel()


def test_transforms_of_torch_func_and_forward_mode():
    q, k, v = (x.detach() for x in draw(torch.bfloat16))

    def loss(q):
        return linear_attention(q, k, v, normalize=True).float().square().sum()

    gradient = torch.func.grad(loss)(q)
    _, slope = torch.func.jvp(loss, (q,), (gradient,))
    torch.testing.assert_close(slope, gradient.float().square().sum(), rtol=0.05, atol=0)
