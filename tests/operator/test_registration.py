"""The operators inside PyTorch: opcheck, compile, autocast, checkpointing, higher derivatives."""

from functools import partial

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

from causal_linear_attention import (
    causal_linear_attention,
    causal_linear_attention_step,
    extension,
    operators,
)
from causal_linear_attention.compiling import assume_constant_result
from tests.helpers import definition

pytestmark = pytest.mark.skipif(not extension.loaded("cpp"), reason=extension.reason("cpp") or "loaded")


def draw(dtype=torch.float32, normalize=False, grad=True):
    return [x.requires_grad_(grad) for x in definition.draw((2, 2, 40, 5, 3), dtype, normalize)[:4]]


@pytest.mark.parametrize("with_state", [False, True], ids=["zero", "state"])
@pytest.mark.parametrize("normalize", [False, True], ids=["plain", "normalize"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_opcheck_forward(dtype, normalize, with_state):
    q, k, v, state = draw(dtype=dtype, normalize=normalize, grad=False)
    arguments = (q, k, v, state if with_state else None, normalize, 1e-6, True)
    results = torch.library.opcheck(operators.forward, arguments)
    assert set(results.values()) == {"SUCCESS"}


def test_opcheck_backward_and_step():
    q, k, v, state = draw(grad=False)
    out, final, inverse, kept = operators.forward(q, k, v, state, False, 1e-6, True)
    arguments = (out, final, q, k, v, state, inverse, kept, False, 1e-6)
    assert set(torch.library.opcheck(operators.backward, arguments).values()) == {"SUCCESS"}
    arguments = (q[:, :, 0], k[:, :, 0], v[:, :, 0], state, False, 1e-6)
    assert set(torch.library.opcheck(operators.step, arguments).values()) == {"SUCCESS"}


LAYOUTS = {
    "dense": (0, 1, 2, 3),
    "projected": (0, 2, 1, 3),
    "columns": (0, 1, 3, 2),
    "by position": (0, 2, 3, 1),
}


@pytest.mark.parametrize("decayed", [False, True], ids=["plain", "decays"])
@pytest.mark.parametrize("heads", [2, 4], ids=["grouped", "alike"])
@pytest.mark.parametrize("order", LAYOUTS.values(), ids=LAYOUTS)
def test_fake_tensors_have_the_strides_of_real_ones(order, heads, decayed):
    """The order is that of q's dimensions in memory."""
    sizes = (2, 4, 3, 8)
    q = torch.rand([sizes[x] for x in order]).permute([order.index(x) for x in range(4)])
    k = torch.rand(2, heads, 3, 8)
    given = (q, k, k, *([torch.rand(heads)] if decayed else []), None)
    run, back = operators.forward, operators.backward
    if decayed:
        run, back = operators.decayed_forward, operators.decayed_backward
    out, _, inverse, kept = run(*given, False, 1e-6, True)
    gradients = (out, None, *given, inverse, kept, False, 1e-6)
    for operator, arguments in ((run, (*given, False, 1e-6, True)), (back, gradients)):
        results = torch.library.opcheck(operator, arguments, test_utils=("test_schema", "test_faketensor"))
        assert set(results.values()) == {"SUCCESS"}


# torch's own code generator cannot link when torch lies in a folder with a space in its name.
INDUCTOR = "aot_eager" if " " in torch.__file__ else "inductor"


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param(INDUCTOR, marks=pytest.mark.exhaustive)])
def test_a_layer_compiles_without_graph_break(backend):
    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv, self.out = torch.nn.Linear(16, 48), torch.nn.Linear(16, 16)

        def forward(self, x):
            q, k, v = (y.unflatten(-1, (2, 8)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
            y = causal_linear_attention(q.exp(), k.exp(), v, normalize=True, backend="cpp")
            return self.out(y.transpose(1, 2).flatten(2))

    layer, x = Layer(), torch.randn(2, 70, 16)
    expected = layer(x)
    expected.sum().backward()
    grads = [p.grad.clone() for p in layer.parameters()]
    layer.zero_grad()
    out = torch.compile(layer, fullgraph=True, backend=backend)(x)
    out.sum().backward()
    torch.testing.assert_close(out, expected)
    for p, grad in zip(layer.parameters(), grads, strict=True):
        torch.testing.assert_close(p.grad, grad, rtol=1e-4, atol=1e-4)


def test_constants_are_marked_as_torch_marks_them():
    def ours(): ...
    def theirs(): ...

    torch.compiler.assume_constant_result(theirs)
    assert vars(assume_constant_result(ours)) == vars(theirs)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize(
    ("low", "expected"),
    [(torch.bfloat16, torch.bfloat16), (torch.float16, torch.float32)],
    ids=["bfloat16", "float16"],
)
def test_autocast_promotes_mixed_types(low, expected, compiled):
    """Features that autocast left in float32 become bfloat16; float16 has not the range for them."""
    linear, x = torch.nn.Linear(8, 8), torch.rand(1, 2, 30, 8)

    run = causal_linear_attention
    if compiled:
        torch._dynamo.reset()  # what other tests compiled counts against the limit of variants
        run = torch.compile(run, fullgraph=True, backend="aot_eager")

    with torch.autocast("cpu", dtype=low):
        q = linear(x)
        assert q.dtype == low and run(q, q, q).dtype == low
        mixed = run(q, x, q)
        assert run(q.double(), x.double(), q).dtype == torch.float64
    assert mixed.dtype == expected
    torch.testing.assert_close(mixed, run(q.to(expected), x.to(expected), q.to(expected)))
    mixed.sum().backward()
    assert linear.weight.grad is not None


def test_inference_mode_and_no_grad():
    q, k, v, state = draw()
    expected = causal_linear_attention(q, k, v, initial_state=state, backend="cpp")
    for context in (torch.inference_mode, torch.no_grad):
        with context():
            out = causal_linear_attention(q, k, v, initial_state=state, backend="cpp")
        assert not out.requires_grad and torch.equal(out, expected)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing(reentrant):
    tensors = draw()

    def run(q, k, v, state):
        return causal_linear_attention(q, k, v, initial_state=state, backend="cpp").square()

    expected = torch.autograd.grad(run(*tensors).sum(), tensors)
    out = checkpoint(run, *tensors, use_reentrant=reentrant)
    out.sum().backward()
    for x, grad in zip(tensors, expected, strict=True):
        torch.testing.assert_close(x.grad, grad)


SHARED = {
    "q is k": lambda x: (x, x, x.square(), None),
    "q from k": lambda x: (2 * x, x, x.square(), None),
    "k is v": lambda x: (x.square(), x, x, None),
    "state from k": lambda x: (x.square(), x, x.exp(), x.mT @ x),
}


@pytest.mark.parametrize("normalize", [False, True], ids=["plain", "normalize"])
@pytest.mark.parametrize("shared", SHARED.values(), ids=SHARED)
def test_inputs_that_depend_on_each_other_have_the_same_gradient_with_a_graph(shared, normalize):
    x = (torch.rand(1, 2, 30, 4, dtype=torch.float64) + 0.1).requires_grad_()
    q, k, v, state = shared(x)
    state = None if normalize else state
    out = causal_linear_attention(q, k, v, normalize=normalize, initial_state=state, backend="cpp").square()
    expected = torch.autograd.grad(out.sum(), x, retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(out.sum(), x, create_graph=True), expected)


def over_reverse(function, x, y):
    """Forward mode over gradients of which only the incoming one is dual, a batch of gradients."""
    x = x.clone().requires_grad_()
    out = function(x)

    def back(grad, **options):
        return torch.autograd.grad(out, x, grad, retain_graph=True, **options)[0]

    found = [torch.func.jvp(partial(back, create_graph=graph), (y,), (y.exp(),)) for graph in (False, True)]
    with forward_ad.dual_level():
        found.append(forward_ad.unpack_dual(back(forward_ad.make_dual(y, y.exp()))))
    return *found, back(torch.stack([y, y.exp()]), is_grads_batched=True)


def of_a_batch(function, x, y):
    """A graph outside of vmap, inside of which nothing seems to require gradients."""
    batch = torch.stack([x, y]).requires_grad_()
    return torch.autograd.grad(torch.vmap(lambda x: function(x) + x)(batch).square().sum(), batch)


TRANSFORMS = {
    "grad": lambda f, x, y: torch.func.grad(lambda x: f(x).square().sum())(x),
    "jvp": lambda f, x, y: torch.func.jvp(f, (x,), (y,)),
    "jacrev": lambda f, x, y: torch.func.jacrev(lambda x: f(x).sum((0, 1, 2)))(x),
    "jacfwd of grad": lambda f, x, y: torch.func.jvp(
        torch.func.grad(lambda x: f(x).pow(3).sum()), (x,), (y,)
    ),
    "vmap": lambda f, x, y: torch.vmap(f)(torch.stack([x, y])),
    "vmap of grad": lambda f, x, y: torch.vmap(torch.func.grad(lambda x: f(x).square().sum()))(
        torch.stack([x, y])
    ),
    "gradient of vmap": of_a_batch,
    "forward over reverse": over_reverse,
}


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "normalized and packed"])
@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
def test_transforms_of_torch_func(transform, packed):
    q, k, v = (torch.rand(1, 2, 70, 3, dtype=torch.float64) + 0.1 for _ in range(3))
    options = {"normalize": packed, "cu_seqlens": torch.tensor([0, 30, 30, 70]) if packed else None}
    found = [
        transform(lambda x, b=b: causal_linear_attention(x, k * x, v + x, backend=b, **options), q, v)
        for b in ("reference", "cpp", "torch")
    ]
    torch.testing.assert_close(found[1:], [found[0]] * 2)


def test_transforms_of_a_step():
    tokens, state = torch.rand(3, 2, 2, 5), torch.rand(2, 2, 5, 5)

    def step(x):
        return causal_linear_attention_step(x, *tokens[1:], state)[0]

    out, change = torch.func.jvp(step, (tokens[0],), (tokens[0],))
    torch.testing.assert_close(change, out)  # linear in q
    torch.testing.assert_close(torch.func.grad(lambda x: step(x).sum())(tokens[0]), slopes(step, tokens[0]))
    batched = torch.func.grad(lambda x: torch.vmap(step)(x[None]).sum())(tokens[0])
    torch.testing.assert_close(batched, slopes(step, tokens[0]))


def slopes(function, x):
    """The derivatives of the sum of `function` by x, from autograd itself."""
    x = x.clone().requires_grad_()
    return torch.autograd.grad(function(x).sum(), x)[0]


def test_second_derivatives_of_packed_sequences_are_not_cast_down_under_autocast():
    q, k, v = (torch.rand(1, 2, 300, d).requires_grad_() for d in (8, 8, 8))
    bounds = torch.tensor([0, 70, 200, 300], dtype=torch.int32)

    def grads(autocast):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            out = causal_linear_attention(q, k, v, normalize=True, cu_seqlens=bounds, backend="cpp")
            return torch.autograd.grad(out.float().square().sum(), (q, k, v), create_graph=True)

    for found, expected in zip(grads(True), grads(False), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_no_gradient_at_all():
    class Silent(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            return None

    q, k, v, _ = draw()
    out = Silent.apply(causal_linear_attention(q, k, v, backend="cpp"))
    for create_graph in (False, True):
        found = torch.autograd.grad(
            out.sum(), (q, k), create_graph=create_graph, retain_graph=True, allow_unused=True
        )
        assert all(x is None or not x.any() for x in found)


@pytest.mark.parametrize("backend", ["cpp", "torch"])
def test_fake_tensors(backend):
    with FakeTensorMode():
        q = torch.rand(1, 2, 9, 4)
        assert causal_linear_attention(q, q + 1, q + 2, backend=backend).shape == q.shape


@pytest.mark.slow
@pytest.mark.parametrize("packed", [False, True], ids=["batches", "sequences"])
def test_one_graph_for_any_number_of(packed):
    graphs = []

    def count(graph, inputs):
        graphs.append(graph)
        return graph

    run = torch.compile(
        partial(causal_linear_attention, return_state=True, backend="cpp"), backend=count, dynamic=True
    )
    for number in (2, 3, 4, 5):
        if packed:
            bounds = torch.arange(number + 1, dtype=torch.int32) * (60 // number)
            bounds[-1] = 60
            run(*(torch.rand(1, 2, 60, 4) for _ in range(3)), cu_seqlens=bounds)
        else:
            run(*(torch.rand(number, 2, 60, 4) for _ in range(3)))
    torch._dynamo.reset()
    assert len(graphs) <= 2


def test_only_the_state_in_the_loss():
    q, k, v, state = draw()
    _, final = causal_linear_attention(q, k, v, initial_state=state, return_state=True, backend="cpp")
    final.sum().backward()
    torch.testing.assert_close(state.grad, torch.ones_like(state))
    assert not q.grad.any()


def test_the_operator_refuses_what_would_read_beyond_a_tensor():
    q = torch.zeros(1, 2, 5, 4)
    for bad in [
        (q, q[:, :, :4], q, None),
        (q, q, q[:, :1], None),
        (q[:, :1], q, q, None),
        (q[:, :0], q, q, None),
        (q, q, q.double(), None),
        (q, q, q, torch.zeros(1, 2, 4, 3)),
        (q.int(), q.int(), q.int(), None),
    ]:
        with pytest.raises(RuntimeError):
            operators.forward(*bad, False, 1e-6, True)


@pytest.mark.parametrize("place", ["k", "v", "state", "grad_out", "inverse"])
def test_the_operator_refuses_tensors_on_two_devices(place):
    """The dispatcher runs the kernels of one of them: here the CPU's with a tensor that has no memory."""
    x = torch.zeros(1, 2, 5, 4)
    state, inverse, kept = torch.zeros(1, 2, 4, 5), torch.zeros(1, 2, 5), torch.zeros(0)
    tensors = {"grad_out": x, "grad_state": None, "q": x, "k": x, "v": x, "state": state, "inverse": inverse}
    tensors[place] = tensors[place].to("meta")
    cpu = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
    message = "on one device|on the device of q|inverse must be what forward returned|grad_out must be like"
    with pytest.raises(RuntimeError, match=message):
        operators.backward.redispatch(cpu, *tensors.values(), kept, True, 1e-6)
    if place in ("k", "v", "state"):
        with pytest.raises(RuntimeError, match=message):
            inputs = (tensors[x] for x in ("q", "k", "v", "state"))
            operators.forward.redispatch(cpu, *inputs, True, 1e-6, True)
        rows = [tensors[x][:, :, 0] for x in ("q", "k", "v")]
        with pytest.raises(RuntimeError, match="must be on one device"):
            operators.step.redispatch(cpu, *rows, tensors["state"], True, 1e-6)
