"""The chunked loss of a linear layer against all logits at once, in every dtype, both ways to compute it."""

import pytest
import torch
import torch.nn.functional as F

from tests.helpers.counting import Made
from user_dir.modules import linear_cross_entropy as module
from user_dir.modules.linear_cross_entropy import linear_cross_entropy, target_margins, token_losses

PAD = 1


@pytest.fixture(params=["torch", "own"])
def way(request, monkeypatch):
    """PyTorch's operator, or its replacement where it is missing."""
    if request.param == "own":
        monkeypatch.delattr(F, "linear_cross_entropy", raising=False)
    elif not hasattr(F, "linear_cross_entropy"):
        pytest.skip("this PyTorch has no linear_cross_entropy")
    return request.param


def case(rows, words, dtype=torch.float32, bias=True, width=12):
    """x, weight, bias as leaves, and targets, some of them padding."""
    x = torch.randn(rows, width, dtype=dtype)
    weight = torch.randn(words, width, dtype=dtype) * 0.3
    leaves = [x, weight, *([torch.randn(words, dtype=dtype)] if bias else [])]
    target = torch.randint(2, words, (rows,))
    target[::5] = PAD
    return [y.requires_grad_() for y in leaves], target


def plain(leaves, target, reduction="sum"):
    x, weight, *bias = leaves
    return F.cross_entropy(F.linear(x, weight, *bias), target, ignore_index=PAD, reduction=reduction)


def chunked(leaves, target, rows):
    x, weight, *bias = leaves
    return linear_cross_entropy(x, weight, target, *bias, ignore_index=PAD, rows=rows)


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "none"])
@pytest.mark.parametrize(("count", "words", "rows"), [(70, 300, 16), (64, 300, 64), (5, 40, 512), (9, 7, 1)])
def test_loss_and_gradients(way, count, words, rows, bias):
    leaves, target = case(count, words, bias=bias)
    expected = plain(leaves, target)
    grads = torch.autograd.grad(0.5 * expected, leaves)
    found = chunked(leaves, target, rows)
    assert found.item() == pytest.approx(expected.item(), rel=1e-6)
    for got, want in zip(torch.autograd.grad(0.5 * found, leaves), grads, strict=True):
        assert (got - want).norm() < 1e-6 * want.norm()


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-12), (torch.bfloat16, 5e-3)])
def test_label_smoothing(dtype, bound):
    leaves, target = case(70, 300, dtype)
    wide = [y.detach().double().requires_grad_() for y in leaves]
    expected = F.cross_entropy(
        F.linear(*wide), target, ignore_index=PAD, reduction="sum", label_smoothing=0.3
    )
    x, weight, bias = leaves
    margins = target_margins(x, weight, target, bias, ignore_index=PAD)
    found = chunked(leaves, target, 16) + 0.3 * margins.sum()
    assert found.item() == pytest.approx(expected.item(), rel=1e-6)
    grads = torch.autograd.grad(expected, wide)
    for got, want in zip(torch.autograd.grad(found, leaves), grads, strict=True):
        assert got.dtype == dtype and (got.double() - want).norm() < bound * want.norm()


def test_no_derivative_of_second_order(way):
    leaves, target = case(9, 7)
    loss = chunked(leaves, target, 4) + leaves[0].pow(3).sum()
    with pytest.raises(RuntimeError, match="a chunked loss has no second derivative"):
        torch.autograd.grad(loss, leaves, create_graph=True)


def test_float64_is_exact(way):
    """(gradcheck takes several backward passes through one graph, whose gradients are made only once.)"""
    leaves, target = case(30, 50, torch.float64)
    grads = torch.autograd.grad(plain(leaves, target), leaves)
    for got, want in zip(torch.autograd.grad(chunked(leaves, target, 4), leaves), grads, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-13, atol=1e-13)


def test_no_rows_and_nothing_but_padding(way):
    leaves, target = case(6, 9)
    for x, t in ((leaves[0][:0], target[:0]), (leaves[0], torch.full_like(target, PAD))):
        loss = chunked([x, *leaves[1:]], t, 4)
        grads = torch.autograd.grad(loss, leaves, materialize_grads=True)
        assert loss == 0 and all(not grad.any() for grad in grads)


def test_only_what_needs_a_gradient_gets_one():
    leaves, target = case(20, 30)
    expected = torch.autograd.grad(plain(leaves, target), leaves[0])[0]
    frozen = [leaves[0], *(y.detach() for y in leaves[1:])]
    torch.testing.assert_close(torch.autograd.grad(chunked(frozen, target, 8), leaves[0])[0], expected)
    with torch.no_grad():
        assert not chunked(leaves, target, 8).requires_grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_validation_computes_no_gradients(dtype, monkeypatch):
    leaves, target = case(20, 30, dtype)
    expected = chunked(leaves, target, 8).detach()
    monkeypatch.setattr(module, "_add_gradients", None)
    with torch.no_grad():
        assert torch.equal(chunked(leaves, target, 8), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_has_float32_sums(dtype):
    """Many small chunks: sums in half precision would lose the later ones."""
    leaves, target = case(4000, 30, dtype)
    wide = [y.detach().double().requires_grad_() for y in leaves]
    expected = plain(wide, target)
    grads = torch.autograd.grad(expected, wide)
    found = chunked(leaves, target, 4)
    assert found.dtype == torch.float32
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)
    # Nothing but the last rounding to the type of the parameter.
    for got, want in zip(torch.autograd.grad(found, leaves), grads, strict=True):
        assert got.dtype == dtype
        assert (got.double() - want).norm() < 0.6 * torch.finfo(dtype).eps * want.norm()


def test_float16_keeps_the_smallest_probabilities():
    """Without the loss scale, which comes later, p^T x would vanish below float16's range."""
    x = torch.full((1, 4), 0.5, dtype=torch.float16, requires_grad=True)
    weight = torch.zeros(5000, 4, dtype=torch.float16, requires_grad=True)
    loss = linear_cross_entropy(x, weight, torch.tensor([3]), ignore_index=PAD)
    (grad,) = torch.autograd.grad(1024 * loss, weight)
    torch.testing.assert_close(grad[10], torch.full((4,), 512 / 5000, dtype=torch.float16))


def test_autocast():
    leaves, target = case(40, 300)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected, found = plain(leaves, target), chunked(leaves, target, 16)
        alone = token_losses(*leaves[:2], target, leaves[2], ignore_index=PAD, rows=16)
    assert found.item() == pytest.approx(expected.item(), rel=2e-3)
    assert alone.sum().item() == pytest.approx(expected.item(), rel=2e-3)
    assert [grad.dtype for grad in torch.autograd.grad(found, leaves)] == [torch.float32] * 3


def test_second_backward_is_refused():
    leaves, target = case(4, 9, torch.bfloat16)
    loss = chunked(leaves, target, 4)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="used up"):
        loss.backward()


@pytest.mark.parametrize("rows", [1, 7, 100])
def test_token_losses(rows):
    leaves, target = case(50, 30)
    x, weight, bias = leaves
    found = token_losses(x, weight, target, bias, ignore_index=PAD, rows=rows)
    torch.testing.assert_close(found, plain(leaves, target, "none"))
    everything = token_losses(x, weight, target, bias, rows=rows)
    assert everything[::5].all() and not found[::5].any()


@pytest.mark.parametrize("compute", ["loss", "tokens"])
def test_never_more_logits_than_rows(way, compute, monkeypatch):
    leaves, target = case(64, 40)
    x, weight, bias = leaves
    with Made() as made, torch.no_grad():
        if compute == "loss":
            module.linear_cross_entropy(x, weight, target, bias, ignore_index=PAD, rows=8)
        else:
            token_losses(x, weight, target, bias, rows=8)
    assert max(made.every) <= max(8 * 40, weight.numel(), x.numel())
