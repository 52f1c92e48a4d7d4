"""The steps between a layer's matrix products: equal to PyTorch's operators, whatever the sizes and types."""

import ctypes
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import gradcheck, gradgradcheck

from causal_linear_attention import extension, fused
from tests.helpers import emulation
from tests.helpers.counting import without_kernels
from user_dir.attention import build_attention
from user_dir.attention.parts import joined
from user_dir.modules import GLU, LRPE, RMSNorm
from user_dir.modules.norms import rms_norm_of_sum

pytestmark = pytest.mark.skipif(not extension.loaded("cpp"), reason=extension.reason("cpp") or "loaded")

BOUNDS = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}
# Every type with the best instruction set, the others with float32.
CASES = [("", dtype) for dtype in BOUNDS]
CASES += [(name, torch.float32) for name in extension.available_instruction_sets()[:-1]]
KINDS = pytest.mark.parametrize(
    ("instruction_set", "dtype"), CASES, indirect=["instruction_set"], ids=lambda x: str(x) or "best"
)
# length, batch, heads, d; block size
SIZES = [
    (1, 1, 1, 1, 4),
    (70, 3, 2, 9, 16),
    (33, 2, 3, 16, 64),
    (130, 1, 2, 64, 64),
    (5, 0, 2, 4, 2),
    (0, 2, 2, 4, 2),
]


@pytest.fixture
def instruction_set(request):
    extension.choose_instruction_set(request.param)
    yield
    extension.choose_instruction_set("")


def close(found, expected, dtype):
    """Relative to the largest entry."""
    assert found.shape == expected.shape
    if expected.numel():
        error = (found.double() - expected.double()).abs().max() / expected.double().abs().max().clamp(
            min=0.1
        )
        assert error < BOUNDS[dtype]


def gradients(run, tensors):
    """Outputs and gradients of `run`, a scalar of them having random weights."""
    leaves = [x.detach().clone().requires_grad_() for x in tensors]
    outs = run(*leaves)
    outs = outs if isinstance(outs, tuple) else (outs,)
    generator = torch.Generator().manual_seed(1)
    weights = [torch.randn(x.shape, generator=generator, device="cpu").to(x) for x in outs]
    return [*outs, *torch.autograd.grad(outs, leaves, weights, allow_unused=True)]


def compare(run, tensors, dtype):
    """By the kernels in `dtype`, and in float64 without."""
    found = gradients(run, tensors)
    with without_kernels():
        expected = gradients(run, [x.double() for x in tensors])
    for x, y in zip(found, expected, strict=True):
        close(x, y, dtype)


def residual(seed, p, eps, keep, shape):
    """`rms_norm_of_sum`, without kernels by the factors that they multiply with."""

    def run(x, y):
        if fused.runs(x):
            return rms_norm_of_sum(x, y, seed, p, eps, keep=keep)
        rows = shape[:-1].numel()
        drop = 1 if seed is None else fused.dropout_factors(seed, p, rows, shape[-1], x.dtype).view(shape)
        total = x + y * drop
        return (total if keep else None), (None if eps is None else RMSNorm()(total))

    return lambda x, y: tuple(out for out in run(x, y) if out is not None)


@KINDS
@pytest.mark.parametrize("p", [0.0, 0.3])
@pytest.mark.parametrize(("eps", "keep"), [(1e-8, True), (1e-8, False), (None, True)])
def test_residual_and_norm(instruction_set, dtype, p, eps, keep):
    seed = fused.new_seed(torch.get_default_device()) if p else None
    for shape in [(7,), (3, 2, 130), (2, 64), (1, 1, 1), (0, 5)]:
        shape = torch.Size(shape)
        tensors = [torch.randn(shape, dtype=torch.float64).to(dtype) for _ in range(2)]
        compare(residual(seed, p, eps, keep, shape), tensors, dtype)
    x = torch.randn(6, 5, 8).to(dtype).transpose(0, 1)  # not contiguous
    compare(residual(None, 0.0, eps, keep, x.shape), [x, x.flip(0)], dtype)


def test_dropout_is_as_often_as_asked_and_of_its_seed():
    ones, zeros = torch.ones(300, 70), torch.zeros(300, 70)
    torch.manual_seed(3)
    seeds = [fused.new_seed("cpu") for _ in range(2)]
    kept = [rms_norm_of_sum(zeros, ones, seed, 0.2, None, keep=True)[0] for seed in (*seeds, seeds[0])]
    assert torch.equal(kept[0], kept[2]) and not torch.equal(kept[0], kept[1])
    for x in kept:
        assert (x == 0).float().mean().sub(0.2).abs() < 0.01 and x.max() == 1.25
        for dim in (0, 1):  # nor do neighbours know of each other
            pairs = (
                (x.narrow(dim, 1, x.shape[dim] - 1) == 0) & (x.narrow(dim, 0, x.shape[dim] - 1) == 0)
            ).float()
            assert pairs.mean().sub(0.04).abs() < 0.01


@KINDS
def test_gated_unit(instruction_set, dtype):
    for rows, width in [(1, 1), (5, 33), (40, 64), (0, 3)]:
        module = GLU(4, width).to(dtype)
        x = torch.randn(rows, 1, 4).to(dtype)
        wide = GLU(4, width).double()
        wide.load_state_dict(module.state_dict())
        found = gradients(module, [x])
        with without_kernels():
            expected = gradients(wide, [x.double()])
        for a, b in zip(found, expected, strict=True):
            close(a, b, dtype)
    rows = torch.randn(30, 2 * 9 + 5).to(dtype)  # of a matrix, of one row for all, and of columns
    for inputs in (rows[:, 2:-3], rows[:1, :18].expand(5, -1), rows[:18].T):
        grad = torch.randn(len(inputs), 20).to(dtype)[:, :9]
        found = fused.gated(inputs), *fused.gated_backward(grad, inputs)
        expected = (
            fused.gated(inputs.contiguous()),
            *fused.gated_backward(grad.contiguous(), inputs.contiguous()),
        )
        assert all(map(torch.equal, found, expected))
    inputs = torch.tensor([[-200.0, -80.0, -1e-8, 0.0, 90.0, torch.inf, torch.nan, *[1.0] * 7]], dtype=dtype)
    close_to = F.silu(inputs[:, :7].double())
    torch.testing.assert_close(fused.gated(inputs).double(), close_to, rtol=1e-2, atol=1e-6, equal_nan=True)


def lrpe_of(dim, dtype):
    module = LRPE(dim, 0.7)
    torch.nn.init.normal_(module.theta)
    return module.to(dtype)


def with_theta(run, lrpe):
    """A function of qkv and theta."""

    def call(qkv, theta):
        module = LRPE(lrpe.v.numel(), lrpe.scale)
        module.v, module.theta = torch.nn.Parameter(lrpe.v.to(qkv.dtype), requires_grad=False), None
        del module._parameters["theta"]
        module.theta = theta
        return run(qkv, module)

    return call


@KINDS
@pytest.mark.parametrize("feature_map", fused.MAPS)
def test_features(instruction_set, dtype, feature_map):
    for length, batch, heads, dim, _ in SIZES:
        qkv, lrpe = torch.randn(length, batch, 3 * heads * dim).to(dtype), lrpe_of(dim, dtype)

        def run(qkv, lrpe, heads=heads):
            return joined.features(qkv, heads, feature_map, lrpe)

        compare(with_theta(run, lrpe), [qkv, lrpe.theta], dtype)
        compare(lambda qkv: run(qkv, None), [qkv], dtype)


@KINDS
@pytest.mark.parametrize("softmax", [False, True], ids=["relu", "softmax"])
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_blocks(instruction_set, dtype, causal, softmax):
    for length, batch, heads, dim, size in SIZES:
        qkv, lrpe = torch.randn(length, batch, 3 * heads * dim).to(dtype), lrpe_of(dim, dtype)
        padding = torch.arange(length) >= torch.arange(1, batch + 1)[:, None] * length // 3
        for mask in [None] if causal else [None, padding]:

            def run(qkv, lrpe, heads=heads, mask=mask, size=size, p=0.0):
                options = {"size": size, "causal": causal, "softmax": softmax, "dropout": p}
                torch.manual_seed(0)
                out = joined.blocks(qkv, heads, lrpe, mask, **options)
                return out if mask is None else out.masked_fill(mask.T[:, :, None], 0.0)

            compare(with_theta(run, lrpe), [qkv, lrpe.theta], dtype)
            compare(lambda qkv, run=run: run(qkv, None), [qkv], dtype)
            if length:
                compare(with_theta(lambda *x, run=run: run(*x, p=0.4), lrpe), [qkv, lrpe.theta], dtype)


def test_derivatives():
    """Of first order by the kernels, of second order by PyTorch's operators."""
    seed = fused.new_seed("cpu")
    x, y = torch.randn(2, 3, 2, 5, dtype=torch.float64, requires_grad=True).unbind(0)
    cases = [
        (residual(seed, 0.3, 1e-8, True, x.shape), (x, y)),
        (residual(None, 0, None, True, x.shape), (x, y)),
    ]
    lrpe, qkv = lrpe_of(3, torch.float64), torch.randn(5, 2, 18, dtype=torch.float64, requires_grad=True)
    for feature_map in fused.MAPS:
        run = with_theta(lambda qkv, lrpe, m=feature_map: joined.features(qkv, 2, m, lrpe), lrpe)
        cases.append((run, (qkv, lrpe.theta)))
    for softmax in (False, True):

        def blocks(qkv, lrpe, softmax=softmax):
            torch.manual_seed(0)
            return joined.blocks(qkv, 2, lrpe, None, size=3, causal=True, softmax=softmax, dropout=0.2)

        cases.append((with_theta(blocks, lrpe), (qkv, lrpe.theta)))
    for run, tensors in cases:
        assert gradcheck(run, tensors, fast_mode=True) and gradgradcheck(run, tensors, fast_mode=True)


def test_a_later_token_reaches_no_earlier_one_in_its_block():
    qkv = torch.randn(64, 1, 3 * 16)
    for softmax in (False, True):
        options = {"size": 64, "causal": True, "softmax": softmax, "dropout": 0.0}
        before = joined.blocks(qkv, 1, None, None, **options)
        changed = qkv.clone()
        changed[40] = torch.nan
        after = joined.blocks(changed, 1, None, None, **options)
        assert torch.equal(after[:40], before[:40]) and after[40:].isnan().all()


@pytest.mark.parametrize("name", ["norm", "diag", "elu"])
def test_float16_has_the_range_that_a_sum_without_denominator_needs(name):
    module = build_attention(name, 32, 2, causal=True).half()
    torch.nn.init.constant_(module.q_proj.bias, 30.0)
    torch.nn.init.constant_(module.k_proj.bias, 30.0)
    out = module(torch.randn(300, 2, 32).half())[0]
    assert out.dtype == torch.float16 and out.isfinite().all()
    out.float().sum().backward()
    assert all(p.grad.isfinite().all() for p in module.parameters() if p.grad is not None)


def test_operators_are_what_pytorch_expects():
    x, seed, heads = torch.randn(4, 2, 6), fused.new_seed("cpu"), 1
    qkv, direction, theta = torch.randn(4, 2, 12), torch.randn(4), torch.randn(1, 1, 2)
    head, rows = torch.randn(2, 1, 4, 4), torch.randn(3, 8)
    _, out, root = fused.residual(x, x, seed, 0.1, 1e-8, True, True)
    rotation = direction, theta, heads
    calls = [
        (fused.residual, (x, x, seed, 0.1, 1e-8, True, True)),
        (fused.residual, (x, None, None, 0.0, 1e-8, True, False)),
        (fused.residual_backward, (x, x, out, root, seed, 0.1, 1e-8)),
        (fused.gated, (rows,)),
        (fused.gated_backward, (rows[:, :4], rows)),
        (fused.gated, (rows[:, :6],)),
        (fused.gated_backward, (rows[:, 5:], rows[:, :6])),
        (fused.features, (qkv, *rotation, 1, 0.5)),
        (fused.features_backward, (head, head, head, qkv, *rotation, 1, 0.5)),
        (fused.blocks, (qkv, *rotation, 3, 0.5, True, False, None, None, 0.0)),
        (fused.blocks_backward, (x[:, :, :4], qkv, *rotation, 3, 0.5, False, True, None, seed, 0.1)),
    ]
    for operator, arguments in calls:
        results = torch.library.opcheck(operator, arguments, test_utils=("test_schema", "test_faketensor"))
        assert set(results.values()) == {"SUCCESS"}


def test_operators_refuse_what_would_read_beyond_a_tensor():
    x, qkv, seed = torch.zeros(2, 3), torch.zeros(2, 1, 12), torch.zeros((), dtype=torch.long)
    theta = torch.zeros(2)
    for operator, arguments in [
        (fused.residual, (x, x[:1], None, 0.0, 1e-8, True, True)),
        (fused.residual, (x, x.double(), None, 0.0, 1e-8, True, True)),
        (fused.residual, (x, x, seed.int(), 0.1, 1e-8, True, True)),
        (fused.residual_backward, (None, None, x, x, None, 0.0, 1e-8)),
        (fused.residual_backward, (None, x, x, x[:1, 0], None, 0.0, 1e-8)),
        (fused.gated, (x,)),
        (fused.gated_backward, (x, torch.zeros(2, 4))),
        (fused.features, (qkv, None, None, 3, 0, 1.0)),
        (fused.features, (qkv, theta, theta, 1, 0, 1.0)),
        (fused.features, (qkv, None, None, 1, 3, 1.0)),
        (fused.features_backward, (x, x, x, qkv, None, None, 1, 0, 1.0)),
        (fused.blocks, (qkv, None, None, 1, 0, 1.0, True, True, None, None, 0.0)),
        (fused.blocks, (qkv, None, None, 1, 2, 1.0, True, True, torch.zeros(2, 2) > 0, None, 0.0)),
        (fused.blocks_backward, (x, qkv, None, None, 1, 2, 1.0, True, True, None, None, 0.0)),
    ]:
        with pytest.raises(RuntimeError):
            operator(*arguments)
    cpu = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
    with pytest.raises(RuntimeError, match="root must be what forward returned"):
        root = torch.zeros(2, device="meta")
        fused.residual_backward.redispatch(cpu, None, x, x, root, None, 0.0, 1e-8)


def library_or_gpu(request, where):
    """The emulation's library, or None where a GPU is there to run the kernels."""
    library = request.getfixturevalue("library_of")(80) if where == "emulated" else None
    if library is None and (why := extension.reason_on_gpu(torch.device("cuda"))):
        pytest.skip(why)
    return library


def on_gpu(operator, *arguments):
    moved = [x.cuda() if isinstance(x, torch.Tensor) else x for x in arguments]
    found = operator(*moved)
    return [x.cpu() for x in (found if isinstance(found, tuple) else (found,))]


@pytest.mark.parametrize("where", emulation.ON_A_GPU)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_kernels_of_a_gpu_compute_what_those_of_the_cpu_do(request, where, dtype):
    library = library_or_gpu(request, where)

    def same(found, expected):
        for x, y in zip(found, expected, strict=True):
            if y.numel():
                close(x.view_as(y), y, dtype)

    for number, (length, batch, heads, dim, _) in enumerate(SIZES[:4]):
        rows, width, order = length * batch, heads * dim, {"order": number, "at_end": number % 2 == 0}
        x, y, grad_sum, grad_out = torch.randn(4, rows, width).to(dtype).unbind(0)
        x[0] = y[0] = 0  # a row without a direction
        for p in (0.0, 0.3):
            seed = fused.new_seed("cpu") if p else None
            total, out, root = fused.residual(x, y, seed, p, 1e-8, True, True)
            grads = fused.residual_backward(grad_sum, grad_out, out, root, seed, p, 1e-8)
            if library is None:
                found = on_gpu(fused.residual, x, y, seed, p, 1e-8, True, True)
                found += on_gpu(fused.residual_backward, grad_sum, grad_out, out, root, seed, p, 1e-8)
            else:
                found = emulation.residual(library, x, y, seed, p, grad_sum, grad_out, **order)
                found = [grads[1] if x is None else x for x in found]
            same([x[1:] for x in found[:2]], [total[1:], out[1:]])
            same([x[1:] for x in found[3:] if x.numel()], [x[1:] for x in grads if x.numel()])
            passes_none = torch.equal(found[3][0], grad_sum[0])
            assert not found[1][0].any() and passes_none == (dtype == torch.float16)
        inputs = torch.randn(rows, 2 * width + number).to(dtype)[:, : 2 * width]
        expected = fused.gated(inputs), *fused.gated_backward(grad_out, inputs)
        if library is None:
            found = on_gpu(fused.gated, inputs) + on_gpu(fused.gated_backward, grad_out, inputs)
        else:
            found = emulation.gated(library, inputs, grad_out, **order)
        same(found, expected)
        qkv, lrpe = torch.randn(length, batch, 3 * width).to(dtype), lrpe_of(dim, torch.float32)
        grads = [torch.randn(batch, heads, length, dim).to(dtype) for _ in range(3)]
        for map in fused.MAPS.values():
            for direction, theta in ((lrpe.v, lrpe.theta), (None, None)):
                rotation = direction, theta, heads, map, 0.7
                expected = *fused.features(qkv, *rotation), *fused.features_backward(*grads, qkv, *rotation)
                if library is None:
                    found = on_gpu(fused.features, qkv, *rotation)
                    back = on_gpu(fused.features_backward, *grads, qkv, *rotation)
                    found += [back[0], back[1].sum(0)]
                else:
                    found = emulation.features(library, qkv, *rotation, grads, **order)
                    found = [expected[3] if x is None else x for x in found]
                same(found, expected)


@pytest.mark.parametrize("where", emulation.ON_A_GPU)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_blocks_of_a_gpu_are_those_of_the_cpu(request, where, dtype):
    library = library_or_gpu(request, where)
    for number, (kind, given) in enumerate(product(KINDS_OF_BLOCKS, BLOCKS)):
        (causal, softmax, pads, turns, p), (length, batch, heads, dim, size) = kind, given
        qkv = torch.randn(length, batch, 3 * heads * dim).to(dtype)
        grad, lrpe = torch.randn(length, batch, heads * dim).to(dtype), lrpe_of(dim, torch.float32)
        direction, theta = (lrpe.v, lrpe.theta) if turns else (None, None)
        padding = torch.arange(length) >= torch.arange(1, batch + 1)[:, None] * length // 3 if pads else None
        seed = fused.new_seed("cpu") if p else None
        options = direction, theta, heads, size, 0.7, causal, softmax, padding, seed, p
        expected = fused.blocks(qkv, *options), *fused.blocks_backward(grad, qkv, *options)
        if library is None:
            out, (grad_qkv, grad_theta) = (
                on_gpu(fused.blocks, qkv, *options),
                on_gpu(fused.blocks_backward, grad, qkv, *options),
            )
            found = [*out, grad_qkv, grad_theta.sum(0) if turns else None]
        else:
            order = {"order": number % 5, "at_end": number % 2 == 0}
            found = emulation.blocks(library, qkv, *options, grad, **order)
        for x, y in zip(found, expected, strict=True):
            if y.numel():
                close(x.view_as(y), y, dtype)


# causal, softmax, with padding, with LRPE, dropout
KINDS_OF_BLOCKS = [
    *[(True, False, False, True, 0.0), (True, True, False, True, 0.4), (False, False, True, True, 0.4)],
    *[(False, True, True, True, 0.0), (False, False, False, False, 0.0), (False, True, False, False, 0.4)],
]
BLOCKS = [*SIZES[:4], (7, 2, 2, 5, 2), (67, 1, 1, 3, 40)]


@pytest.mark.exhaustive
def test_blocks_fit_a_gpu_by_the_rule_of_the_kernels(library_of):
    for size, dim in [(64, 64), (1, 1), (33, 128), (512, 7)]:
        assert fused.blocks_bytes(size, dim) == library_of(80).blocks_bytes(
            ctypes.c_int64(size), ctypes.c_int64(dim)
        )
