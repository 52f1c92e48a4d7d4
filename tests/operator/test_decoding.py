"""A new token in one call: equal to PyTorch's operators, whatever the sizes, places and layouts."""

from types import SimpleNamespace

import pytest
import torch

from causal_linear_attention import decoding, extension, fused, operators
from tests.helpers import emulation
from user_dir.attention import build_attention
from user_dir.attention.parts.features import FEATURE_MAPS
from user_dir.modules import LRPE, RMSNorm
from user_dir.modules.lrpe import turn_both
from user_dir.modules.norms import _rms_norm

pytestmark = pytest.mark.usefixtures("without_gradients")
cpp = pytest.mark.skipif(not extension.loaded("cpp"), reason=extension.reason("cpp") or "loaded")
SIZES = [(1, 1, 1), (3, 4, 8), (2, 3, 33), (1, 2, 64), (5, 1, 2), (0, 2, 4)]  # batch, heads, d


@pytest.fixture
def without_gradients():
    with torch.no_grad():
        yield


def skip_without_cuda_kernels():
    if why := extension.reason_on_gpu(torch.device("cuda")):
        pytest.skip(why)


def on_gpu(operator):
    """Calls it with tensors of the CPU, whose changes come back."""

    def call(*arguments):
        moved = [x.cuda() if isinstance(x, torch.Tensor) else x for x in arguments]
        found = operator(*moved)
        for x, y in zip(arguments, moved, strict=True):
            if isinstance(x, torch.Tensor):
                x.copy_(y)
        return found.cpu() if isinstance(found, torch.Tensor) else [x.cpu() for x in found]

    return call


@pytest.fixture(
    params=[
        pytest.param("cpp", marks=cpp),
        pytest.param(0, id="emulated", marks=pytest.mark.exhaustive),
        pytest.param(3, id="emulated, warps in any order", marks=pytest.mark.exhaustive),
        pytest.param("cuda", marks=pytest.mark.cuda),
    ]
)
def steps(request):
    """`norm_step` and `block_step` of the C++ kernels, and of the CUDA kernels on a CPU and a GPU."""
    if request.param == "cpp":
        return decoding
    if request.param == "cuda":
        skip_without_cuda_kernels()
        names = ("norm_step", "block_step")
        return SimpleNamespace(**{name: on_gpu(getattr(decoding, name)) for name in names})
    library, order = request.getfixturevalue("library_of")(80), request.param
    return SimpleNamespace(
        norm_step=lambda *given: emulation.norm_step(library, *given, order=order, at_end=order == 0),
        block_step=lambda *given: emulation.block_step(library, *given, order=order, at_end=order == 0),
    )


def tokens(batch, heads, dim):
    """q, k, v with different strides, LRPE and its angles."""
    q, k, v = torch.randn(batch, 1, heads, dim, 3).unbind(-1)
    lrpe = LRPE(dim, 0.7).eval()
    return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), lrpe, lrpe.angles(torch.float32)


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", FEATURE_MAPS)
@pytest.mark.parametrize("sizes", SIZES)
def test_norm_step(steps, sizes, name):
    q, k, v, lrpe, angles = tokens(*sizes)
    batch, heads, dim = sizes
    lrpe.scale = 1.0
    positions = torch.tensor([0, 100_000, 3, 17, 64])[:batch]
    state = torch.randn(dim, dim, batch, heads).permute(2, 3, 0, 1)
    turned_q, turned_k = turn_both(
        *map(FEATURE_MAPS[name], (q, k)), lrpe.rotations(positions[:, None, None], q.dtype)
    )
    expected = state + turned_k.mT @ v
    out, found = steps.norm_step(q, k, v, *angles, positions, state, name == "1+elu")
    close(found, expected)
    close(out, turned_q @ expected)


@pytest.mark.parametrize("softmax", [False, True], ids=["relu", "softmax"])
@pytest.mark.parametrize("sizes", SIZES)
def test_block_step(steps, sizes, softmax):
    q, k, v, lrpe, angles = tokens(*sizes)
    batch, heads, dim = sizes
    size, places = 7, torch.tensor([0, 6, 3, 5, 1])[:batch]
    keys, values = torch.randn(2, batch, heads, size, dim).unbind(0)
    found_keys, found_values = keys.clone(), values.clone()
    turned_q, turned_k = turn_both(q, k, lrpe.rotations(places[:, None, None], q.dtype))
    index = places[:, None, None, None].expand(batch, heads, 1, dim)
    keys, values = keys.scatter(2, index, turned_k), values.scatter(2, index, v)
    hidden = torch.arange(size) > places[:, None, None, None]
    scores = turned_q @ keys.mT
    weights = (
        scores.masked_fill(hidden, -torch.inf).softmax(-1)
        if softmax
        else scores.relu().masked_fill(hidden, 0)
    )
    out = steps.block_step(q, k, v, *angles, lrpe.scale, places, found_keys, found_values, softmax)
    close(found_keys, keys)
    close(found_values, values)
    close(out, weights @ values)


@cpp
@pytest.mark.parametrize("shape", [(1,), (7, 33), (200, 3, 64), (0, 5), (1, 1, 128)])
def test_rms_norm(shape):
    x = torch.randn(shape)
    x[:1] = 0.0
    x = x.mT if len(shape) == 3 else x
    close(decoding.rms_norm(x, 1e-8), _rms_norm(x, 1e-8)[0])


@pytest.fixture(params=extension.available_instruction_sets())
def instruction_set(request):
    before = extension.instruction_set()
    extension.choose_instruction_set(request.param)
    yield request.param
    extension.choose_instruction_set(before)


def drawn(*shapes):
    """float32 numbers of these shapes, whose products stay near one, and the same in float64."""
    tensors = [torch.randn(shape) * max(shape[-1], 1) ** -0.5 for shape in shapes]
    return tensors, [x.double() for x in tensors]


# Length, batch, inputs, outputs: fewer and more than vectors, tiles, and pieces of columns have.
PRODUCTS = [
    (1, 1, 1, 1),
    (1, 3, 33, 5),
    (2, 1, 192, 67),
    (1, 7, 15, 130),
    (3, 3, 341, 64),
    (1, 0, 4, 4),
    (1, 2, 8, 0),
]


@cpp
@pytest.mark.parametrize("sizes", PRODUCTS, ids=str)
def test_linear_step(instruction_set, sizes):
    length, batch, depth, width = sizes
    given, wide = drawn((length, batch, depth), (width, depth), (width,), (length, batch, width))
    given[0].mul_(5), wide[0].mul_(5)
    for eps in (None, 1e-8):
        (x, weight, bias, residual), (y, *rest) = given, wide
        y = y if eps is None else _rms_norm(y, eps)[0]
        expected = torch.nn.functional.linear(y, rest[0])
        close(decoding.linear_step(x, eps, weight, None, None), expected.float())
        expected = expected + rest[1] + rest[2]
        close(decoding.linear_step(x, eps, weight, bias, residual), expected.float())
        x = x.transpose(0, 1).contiguous().transpose(0, 1)
        close(decoding.linear_step(x, eps, weight, bias, residual), expected.float())


@cpp
@pytest.mark.parametrize("sizes", [x for x in PRODUCTS if x[3]], ids=str)
def test_gated_step(instruction_set, sizes):
    length, batch, width, inner = sizes
    given, wide = drawn((length, batch, width), (2 * inner, width), (2 * inner,), (width, inner), (width,))
    (x, first, bias, last, out_bias), (y, *rest) = given, wide
    for biases in ((bias, out_bias), (None, None)):
        own = [None if b is None else b.double() for b in biases]
        gate, value = torch.nn.functional.linear(_rms_norm(y, 1e-8)[0], rest[0], own[0]).chunk(2, -1)
        expected = y + torch.nn.functional.linear(torch.nn.functional.silu(gate) * value, rest[2], own[1])
        close(decoding.gated_step(x, 1e-8, first, biases[0], last, biases[1]), expected.float())


def norm_and_derivative(x, grad):
    """Output, root mean squares and gradient with PyTorch's operators."""
    out, root = _rms_norm(x, RMSNorm.eps)
    with torch.enable_grad():
        given = x.clone().requires_grad_()
        (grad_x,) = torch.autograd.grad(RMSNorm()(given), given, grad)
    return out, root.flatten(), grad_x


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=lambda x: str(x)[6:])
@pytest.mark.parametrize("shape", [(1, 1), (7, 33), (20, 64), (0, 5), (9, 130)], ids=str)
@pytest.mark.parametrize("where", emulation.ON_A_GPU)
def test_rms_norm_and_its_derivative_on_a_gpu(request, where, shape, dtype):
    """Also of a row of zeros, whose derivative is 1e8 times the gradient but in float16."""
    x, grad = torch.randn(shape).to(dtype), torch.randn(shape).to(dtype)
    x[:1] = 0.0
    expected = norm_and_derivative(x, grad)
    if where == "emulated":
        library = request.getfixturevalue("library_of")(80)
        found = emulation.rms_norm(library, x, grad, order=2, at_end=shape[0] % 2 == 0)
    else:
        skip_without_cuda_kernels()
        out, root = decoding.rms_norm_forward(x.cuda(), RMSNorm.eps)
        grad_x = decoding.rms_norm_backward(grad.cuda(), out, root, RMSNorm.eps)
        found = out.cpu(), root.cpu(), grad_x.cpu()
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-2 if x.dtype != torch.float32 else 2e-5, atol=2e-3)


@pytest.mark.cuda
def test_normalized_rows_and_their_gradients_reach_the_kernels():
    """`RMSNorm` on a GPU, in training and without gradients, in any layout."""
    skip_without_cuda_kernels()
    x = torch.randn(5, 33, 4, device="cuda").mT
    assert decoding.normalizes(x)
    out, _, grad_x = norm_and_derivative(x, torch.ones_like(x))
    expected = norm_and_derivative(x.cpu(), torch.ones(x.shape))
    close(out.cpu(), expected[0])
    close(RMSNorm()(x).cpu(), expected[0])
    torch.testing.assert_close(grad_x.cpu(), expected[2], rtol=1e-4, atol=1e-4)


@pytest.mark.exhaustive
def test_a_place_outside_the_block_becomes_nan_on_a_gpu(library_of):
    """Where nobody can wait for an error; nothing is written and the other tokens are right."""
    q, k, v, lrpe, angles = tokens(3, 2, 8)
    keys, values = torch.randn(2, 3, 2, 4, 8).unbind(0)
    before = keys.clone(), values.clone()
    places = torch.tensor([4, 1, -1])
    given = (q, k, v, *angles, lrpe.scale, places, keys, values, True)
    out = emulation.block_step(library_of(80), *given)
    assert out[[0, 2]].isnan().all() and out[1].isfinite().all()
    for x, y in zip((keys, values), before, strict=True):
        assert torch.equal(x[[0, 2]], y[[0, 2]]) and not torch.equal(x[1], y[1])


def block_step_of(q, k, v, angles, places):
    keys, values = (torch.randn(*q.shape[:2], 4, q.shape[-1]) for _ in range(2))
    return q, k, v, *angles, 0.5, places, keys, values, True


def linear_step_of(x):
    return x, 1e-8, torch.randn(3, 5), torch.randn(3), torch.randn(1, 2, 3)


def gated_step_of(x):
    return x, 1e-8, torch.randn(8, 5), torch.randn(8), torch.randn(5, 4), None


@cpp
@pytest.mark.parametrize("inference", [False, True])
def test_every_operator_that_writes_an_argument_tells_autograd(inference):
    """It then refuses gradients of what came before. Tensors of inference mode have no version."""
    q, k, v, _, angles = tokens(2, 3, 8)
    calls = {"block_step": block_step_of(q, k, v, angles, torch.tensor([0, 2]))}
    schemas = {
        x.split("(")[0]: getattr(torch.ops.causal_linear_attention, x.split("(")[0]).default._schema
        for x in (*operators._SCHEMAS, *fused._SCHEMAS)
    }
    writing = {name: schema for name, schema in schemas.items() if schema.is_mutable}
    assert set(writing) == set(calls)
    for name, schema in writing.items():
        written = [x.alias_info is not None and x.alias_info.is_write for x in schema.arguments]
        with torch.inference_mode(inference):
            arguments = [x.clone() if isinstance(x, torch.Tensor) else x for x in calls[name]]
            before = [
                x._version if w and not inference else 0 for x, w in zip(arguments, written, strict=True)
            ]
            getattr(decoding, name)(*arguments)
        for x, w, version in zip(arguments, written, before, strict=True):
            assert inference or not w or x._version > version


@cpp
def test_gradients_through_a_state_that_decoding_went_on_from_are_refused():
    attention = build_attention("diag", 8, 2, causal=True).eval()
    x, state = torch.randn(5, 1, 2, 8), {}
    with torch.enable_grad():
        loss = sum(attention(token, incremental_state=state)[0].sum() for token in x[:3])
    for token in x[3:]:
        attention(token, incremental_state=state)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@cpp
def test_opcheck():
    q, k, v, _, angles = tokens(2, 3, 8)
    places, state = torch.tensor([0, 2]), torch.randn(2, 3, 8, 8)
    calls = [
        (decoding.norm_step, (q, k, v, *angles, places, state, True)),
        (torch.ops.causal_linear_attention.block_step.default, block_step_of(q, k, v, angles, places)),
        (decoding.rms_norm, (torch.randn(3, 5), 1e-8)),
        (decoding.linear_step, linear_step_of(torch.randn(1, 2, 5))),
        (decoding.gated_step, gated_step_of(torch.randn(1, 2, 5))),
    ]
    for operator, arguments in calls:
        assert set(torch.library.opcheck(operator, arguments).values()) == {"SUCCESS"}


@cpp
def test_what_would_read_beyond_a_tensor_is_refused():
    q, k, v, _, (direction, theta) = tokens(2, 3, 8)
    places, state, block = torch.tensor([0, 2]), torch.randn(2, 3, 8, 8), torch.randn(2, 3, 4, 8)
    wrong = [
        (decoding.norm_step, (q, k[:1], v, direction, theta, places, state, True), "q's shape"),
        (decoding.norm_step, (q, k, v, direction[:7], theta, places, state, True), "direction must be"),
        (decoding.norm_step, (q, k, v, direction, theta.float(), places, state, True), "theta must be"),
        (decoding.norm_step, (q, k, v, direction, theta, places[:1], state, True), "positions must be"),
        (decoding.norm_step, (q, k, v, direction, theta, places, state[:, :2], True), "state must be"),
        (decoding.norm_step, (q.double(), k, v, direction, theta, places, state, True), "float32"),
        (
            decoding.block_step,
            (q, k, v, direction, theta, 1.0, places + 2, block, block, True),
            "places must",
        ),
        (decoding.block_step, (q, k, v, direction, theta, 1.0, places, block, block[:1], True), "keys and"),
        (decoding.rms_norm, (torch.randn(3).double(), 1e-8), "float32"),
    ]
    x = torch.randn(1, 2, 5)
    for operator, given, changes in (
        (
            decoding.linear_step,
            linear_step_of(x),
            [
                (0, x[0], "x must be"),
                (0, x.double(), "float32"),
                (2, torch.randn(3, 4), "weights must be"),
                (2, torch.randn(5, 3).T, "contiguous"),
                (3, torch.randn(4), "biases must have"),
                (4, torch.randn(1, 2, 4), "residual must be"),
            ],
        ),
        (
            decoding.gated_step,
            gated_step_of(x),
            [
                (2, torch.randn(7, 5), "as many gates"),
                (3, torch.randn(4), "biases must have"),
                (4, torch.randn(5, 3), "weights must be"),
                (4, torch.randn(4, 4), "output must be"),
            ],
        ),
    ):
        for place, other, message in changes:
            wrong.append((operator, (*given[:place], other, *given[place + 1 :]), message))
    for operator, arguments, message in wrong:
        with pytest.raises(RuntimeError, match=message):
            operator(*arguments)


@cpp
def test_only_where_they_run():
    x = torch.zeros(1)
    assert decoding.decodes(x) and not decoding.decodes(x.double()) and not decoding.decodes(x.to("meta"))
    with torch.enable_grad():
        assert not decoding.decodes(x)


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # of vmap over scatter
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
@pytest.mark.parametrize("name", ["rmsnorm", "norm", "diag"])
def test_transforms_of_torch_func_see_the_operators(name, device):
    """The kernels, which have no rule for them, would drop the derivative, or could not be batched."""
    if device == "cuda":
        skip_without_cuda_kernels()
    if name == "rmsnorm":
        compute = RMSNorm()
    else:
        attention = build_attention(name, 8, 2, causal=True).eval().to(device)

        def compute(x):
            return attention(x[None], incremental_state={})[0]

    x, direction = torch.randn(2, 3, 8, dtype=torch.float32, device=device).unbind(0)
    for enabled in (False, True):
        with torch.set_grad_enabled(enabled):
            _, slope = torch.func.jvp(compute, (x,), (direction,))
            near = [compute(x + step * direction) for step in (1e-3, -1e-3)]
            torch.testing.assert_close(slope, (near[0] - near[1]) / 2e-3, rtol=1e-2, atol=5e-3)
    rows = torch.randn(4, 3, 8, device=device)
    close(torch.vmap(compute)(rows), torch.stack([compute(row) for row in rows]))
    if name != "rmsnorm":  # the rest of an attention refuses these
        return
    with torch.enable_grad():
        given = x.clone().requires_grad_()
        out = compute(given)
        expected = torch.autograd.grad(out, given, direction, retain_graph=True)[0]
        _, slope = torch.func.vjp(compute, x)
        close(slope(direction)[0], expected)
        _, slope = torch.func.jvp(lambda g: torch.autograd.grad(out, given, g)[0], (x,), (direction,))
        close(slope, expected)  # linear in g
