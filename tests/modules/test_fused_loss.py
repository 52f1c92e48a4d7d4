"""The loss with Triton against float64: through Triton's interpreter on the CPU, and on a GPU."""

import pytest
import torch

from tests.modules.test_linear_cross_entropy import PAD, case, chunked, plain
from tests.operator.triton.test_triton import DEVICES, GPU, compiled, installed, multiply_bfloat16
from user_dir.modules import fused_loss
from user_dir.modules.fused_loss import Tiles
from user_dir.modules.linear_cross_entropy import linear_cross_entropy, token_losses

SMALL = Tiles(16, 32, 16, warps=4, stages=2)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# Of the gradients' norm: their own rounding and that of `p - t`, which the interpreter truncates to bfloat16.
BOUNDS = {torch.float32: 1e-6, torch.bfloat16: 6e-3, torch.float16: 5e-4}


@pytest.fixture(params=DEVICES)
def device(request, monkeypatch):
    """Where the kernels run, in float32, too, with small tiles, three to a span."""
    if request.param == "cpu":
        multiply_bfloat16(monkeypatch)
    elif why := fused_loss.triton_backend.reason(GPU):
        pytest.skip(why)
    monkeypatch.setattr(fused_loss, "tiles", lambda device: SMALL)
    monkeypatch.setattr(fused_loss, "SPAN", 3 * SMALL.words)
    monkeypatch.setattr(fused_loss, "product", lambda a, b: a.float() @ b.float())
    monkeypatch.setattr(fused_loss, "computes", lambda x: len(x) > 0)
    torch.use_deterministic_algorithms(True)  # torch.empty gives NaN: every element must be written
    yield request.param
    torch.use_deterministic_algorithms(False)


def moved(leaves, device):
    return [x.detach().to(device).requires_grad_() for x in leaves]


def check(leaves, target, rows=8):
    """The loss and gradients of the leaves, against float64."""
    wide = [x.detach().double().requires_grad_() for x in leaves]
    x, weight, *bias = leaves
    found = linear_cross_entropy(x, weight, target, *bias, ignore_index=PAD, rows=rows)
    expected = plain(wide, target)
    assert found.dtype == torch.float32
    assert found.item() == pytest.approx(expected.item(), rel=1e-6)
    expected = torch.autograd.grad(0.5 * expected, wide)
    for got, want in zip(torch.autograd.grad(0.5 * found, leaves), expected, strict=True):
        assert got.dtype == x.dtype and got.is_contiguous()
        assert (got.double() - want).norm() <= BOUNDS[x.dtype] * want.norm()


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda x: str(x).removeprefix("torch."))
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "none"])
@pytest.mark.parametrize(("count", "words", "width"), [(37, 301, 20), (1, 7, 1), (16, 96, 16), (5, 97, 33)])
def test_loss_and_gradients(device, count, words, width, bias, dtype):
    leaves, target = case(count, words, dtype, bias, width)
    check(moved(leaves, device), target.to(device))


@pytest.mark.parametrize("layout", ["sliced", "transposed"])
def test_strides(device, layout):
    leaves, target = case(20, 40, bias=False)
    if layout == "sliced":
        leaves = [torch.cat([x.detach(), x.detach()], 1)[:, : x.shape[1]] for x in leaves]
    else:
        leaves = [x.detach().T.contiguous().T for x in leaves]
    leaves, target = [x.to(device).requires_grad_() for x in leaves], target.to(device)
    expected = torch.autograd.grad(plain(leaves, target), leaves)
    for got, want in zip(torch.autograd.grad(chunked(leaves, target, 4), leaves), expected, strict=True):
        torch.testing.assert_close(got, want)


def test_only_what_needs_a_gradient_gets_one(device):
    leaves, target = case(20, 40)
    leaves, target = moved(leaves, device), target.to(device)
    for i, leaf in enumerate(leaves):
        frozen = [x if x is leaf else x.detach() for x in leaves]
        (found,) = torch.autograd.grad(chunked(frozen, target, 4), leaf)
        torch.testing.assert_close(found, torch.autograd.grad(plain(leaves, target), leaves)[i])
    with torch.no_grad():
        assert not chunked(leaves, target, 4).requires_grad


def test_each_token_has_a_loss_and_a_gradient_of_its_own(device):
    """Also where the gradients of all are zero, and where all tokens are padding."""
    leaves, target = case(20, 40)
    leaves, target = moved(leaves, device), target.to(device)
    x, weight, bias = leaves
    for factors in (torch.arange(20.0, device=device) - 7, torch.zeros(20, device=device)):
        found = token_losses(x, weight, target, bias, ignore_index=PAD, rows=8)
        expected = plain(leaves, target, "none")
        torch.testing.assert_close(found, expected)
        for got, want in zip(
            torch.autograd.grad((found * factors).sum(), leaves, retain_graph=True),
            torch.autograd.grad((expected * factors).sum(), leaves),
            strict=True,
        ):
            torch.testing.assert_close(got, want)
    nothing = chunked(leaves, torch.full_like(target, PAD), 8)
    assert nothing == 0 and not any(x.any() for x in torch.autograd.grad(nothing, leaves))


def test_a_target_that_is_no_word_shows(device):
    leaves, target = case(6, 9)
    target[3] = 9
    losses = token_losses(*moved(leaves, device)[:2], target.to(device), ignore_index=PAD)
    assert losses.isnan().tolist() == [False, False, False, True, False, False]


def test_no_derivative_of_second_order(device):
    leaves, target = case(9, 7)
    leaves = moved(leaves, device)
    loss = chunked(leaves, target.to(device), 4) + leaves[0].pow(3).sum()
    with pytest.raises(RuntimeError, match="a chunked loss has no second derivative"):
        torch.autograd.grad(loss, leaves, create_graph=True)


def test_words_beyond_the_range_of_a_sum(device):
    """Logits of thousands, and words that a bias excludes."""
    leaves, target = case(20, 100)
    leaves = [x.detach() for x in leaves]
    leaves[1][::7] *= 3000
    leaves[2][(torch.arange(100) % 3 == 1)] = float("-inf")
    target = (target // 3 * 3).where(target != PAD, PAD)
    leaves, target = moved(leaves, device), target.to(device)
    found, expected = chunked(leaves, target, 8), plain(leaves, target)
    torch.testing.assert_close(found, expected)
    for got, want in zip(
        torch.autograd.grad(found, leaves), torch.autograd.grad(expected, leaves), strict=True
    ):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def test_float16_keeps_the_smallest_probabilities(device):
    """p of 1e-7 alone would be rounded to a few bits, and a small factor of the loss would leave nothing."""
    leaves, target = case(6, 50, torch.float16, width=4)
    with torch.no_grad():
        leaves[2][5] += 16
    target[target == 5] = 6
    leaves, wide = moved(leaves, device), [x.detach().double().requires_grad_() for x in leaves]
    grads = torch.autograd.grad(1e-6 * chunked(leaves, target.to(device), 8) * 1e9, leaves)
    expected = torch.autograd.grad(1e3 * plain(wide, target), wide)
    for got, want in zip(grads, expected, strict=True):
        torch.testing.assert_close(got.double().cpu(), want, rtol=2e-3, atol=1e-6)


def test_memory(monkeypatch):
    """`p - t` of a block of words overwrites the previous block's."""
    monkeypatch.setattr(fused_loss, "tiles", lambda device: SMALL)
    monkeypatch.setattr(fused_loss, "_launch", lambda *given, **constants: None)
    x, weight = torch.empty(128, 4, dtype=torch.bfloat16), torch.empty(900, 4, dtype=torch.bfloat16)
    blocks = list(fused_loss._errors(x, weight, None, None, None, None, rows=16))
    assert [word for here, _ in blocks for word in range(900)[here]] == list(range(900))
    memories = [errors.untyped_storage() for _, errors in blocks]
    assert len(blocks) == 5 and len({memory.data_ptr() for memory in memories}) == 1
    assert memories[0].nbytes() <= 16 * 900 * 4


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("dtype", fused_loss.DTYPES, ids=lambda x: str(x).removeprefix("torch."))
def test_as_it_is_called(dtype):
    """Nothing patched: tiles, spans and the choice of the kernels; little memory, and the same bits again."""
    torch.manual_seed(0)
    leaves, target = case(4000, 20_011, dtype, width=512)
    with torch.no_grad():
        leaves[1] /= 8
    leaves, target = moved(leaves, "cuda"), target.cuda()
    assert fused_loss.computes(leaves[0])
    check(leaves, target, rows=64)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    grads = [torch.autograd.grad(chunked(leaves, target, 64), leaves) for _ in range(2)]
    logits = 4000 * 20_011 * 2
    assert torch.cuda.max_memory_allocated() - before < logits / 2
    assert all(torch.equal(*pair) for pair in zip(*grads, strict=True))


@installed
def test_kernels_compile_for_gpus_that_are_not_there(root, tmp_path):
    """And another batch or vocabulary runs the same code."""
    cases = ("80:float16:512", "90:bfloat16:512")
    *kernels, changed = compiled(root, tmp_path, *cases, module="loss_compiled")
    assert len(kernels) == 4 and changed == []
    for found in kernels:
        most = 227 if found["case"].startswith("90") else 99
        assert found["stack"] <= 32 and found["shared"] <= most * 1024, found
