"""Packed sequences: every backend equals the loop over the sequences, in values, gradients and states."""

import random
from functools import partial

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import gradcheck, gradgradcheck

from causal_linear_attention import causal_linear_attention, extension, linear_attention, operators, packed
from causal_linear_attention.chunked import CHUNK
from causal_linear_attention.reference import each_sequence
from tests.helpers.counting import Made

cpp = pytest.mark.skipif(not extension.loaded("cpp"), reason=extension.reason("cpp") or "loaded")
BACKENDS = [pytest.param("cpp", marks=cpp), "torch"]
LENGTHS = (0, 0, 1, 2, 15, 16, 17, 31, 33, 64, 65, 100)


@pytest.fixture
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def bounds(lengths):
    """With a stride, as a column of a table has."""
    numbers = torch.tensor([0, *lengths]).cumsum(0, dtype=torch.int32)
    return torch.stack([numbers, numbers], 1)[:, 0]


def draw(lengths, heads=2, dim=4, width=3, dtype=torch.float64, normalize=False, state=True, projected=False):
    """q, k, v, the initial states (or None) and cu_seqlens."""
    length = sum(lengths)
    q, k, v = (torch.rand(1, heads, length, columns, dtype=torch.float64) for columns in (dim, dim, width))
    if projected:  # (B, N, H, D), as a projection leaves it
        q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v))
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    s = torch.rand(len(lengths), heads, dim, width + normalize, dtype=wide) if state else None
    return (q + 0.1).to(dtype), (k + 0.1).to(dtype), (v - 0.5).to(dtype), s, bounds(lengths)


def everything(run, q, k, v, state):
    """Output, final states and the gradients of q, k, v and the states, of random weights of both."""
    leaves = [x.detach().requires_grad_() for x in (q, k, v, state) if x is not None]
    out, final = run(*leaves, *[None] * (4 - len(leaves)))
    weights = torch.Generator().manual_seed(0)
    loss = sum((x * torch.randn(x.shape, generator=weights).to(x)).sum() for x in (out, final))
    return [out.detach(), final.detach(), *torch.autograd.grad(loss, leaves)]


def attend(q, k, v, state=None, **options):
    return causal_linear_attention(q, k, v, initial_state=state, return_state=True, **options)


def loop(cu_seqlens, **options):
    return partial(each_sequence, cu_seqlens=cu_seqlens, run=partial(attend, **options))


def packing(chance):
    """A random packing: the arguments of `draw`."""
    return {
        "lengths": [chance.choice(LENGTHS) for _ in range(chance.randint(1, 7))],
        "heads": chance.randint(1, 3),
        "dim": chance.randint(1, 20),
        "width": chance.randint(1, 20),
        "normalize": chance.random() < 0.5,
        "state": chance.random() < 0.5,
        "projected": chance.random() < 0.5,
    }


@cpp
def test_random_packings_have_the_bits_of_the_loop(one_thread):
    chance = random.Random(0)
    for _ in range(200):
        dtype = chance.choice([torch.float64, torch.float32, torch.bfloat16, torch.float16])
        given = packing(chance)
        *tensors, cu_seqlens = draw(**given, dtype=dtype)
        options = {"normalize": given["normalize"], "backend": "cpp"}
        found = everything(partial(attend, cu_seqlens=cu_seqlens.long(), **options), *tensors)
        for x, y in zip(found, everything(loop(cu_seqlens, **options), *tensors), strict=True):
            assert x.shape == y.shape and x.dtype == y.dtype and torch.equal(x, y), given


@pytest.fixture(params=[False, True], ids=["chunks", "one by one"])
def one_by_one(request, monkeypatch):
    """Both ways of PyTorch's path, whatever the lengths."""
    monkeypatch.setattr(packed, "_WORTH_A_STEP", 0 if request.param else float("inf"))


def test_random_packings_in_pytorch_equal_the_definition(one_by_one):
    chance = random.Random(1)
    for _ in range(40):
        given = packing(chance)
        *tensors, cu_seqlens = draw(**given)
        cu_seqlens = cu_seqlens.to(chance.choice([torch.int32, torch.int64]))
        options = {"normalize": given["normalize"], "cu_seqlens": cu_seqlens}
        found = everything(partial(attend, backend="torch", **options), *tensors)
        expected = everything(partial(attend, backend="reference", **options), *tensors)
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_error_in_pytorch_is_that_of_the_plain_formula(one_by_one, dtype):
    *tensors, cu_seqlens = draw([70, 0, 5, 200, 1], dim=16, width=16, dtype=dtype)
    truth = everything(loop(cu_seqlens, backend="reference"), *(x.double() for x in tensors))
    plain = everything(loop(cu_seqlens, backend="reference"), *tensors)
    found = everything(partial(attend, cu_seqlens=cu_seqlens, backend="torch"), *tensors)
    alone = everything(loop(cu_seqlens, backend="torch"), *tensors)
    for t, p, f, a in zip(truth, plain, found, alone, strict=True):
        error, of_loop, of_formula = ((x.double() - t).norm() for x in (f, a, p))
        assert error <= 2 * of_formula + 1e-6 * t.norm()
        assert error <= 1.1 * of_loop + 1e-6 * t.norm(), "gradients are rounded before they are summed"


@pytest.mark.parametrize("backend", [*BACKENDS, "reference"])
@pytest.mark.parametrize("normalize", [False, True], ids=["plain", "normalize"])
def test_derivatives_of_both_orders(backend, normalize):
    *tensors, cu_seqlens = draw([3, 0, 20, 1], heads=1, dim=2, width=2, normalize=normalize)
    tensors = [x.requires_grad_() for x in tensors]
    run = partial(attend, cu_seqlens=cu_seqlens, normalize=normalize, backend=backend)
    assert gradcheck(run, tensors, fast_mode=True)
    assert gradgradcheck(run, tensors, fast_mode=True)


@cpp
@pytest.mark.parametrize("normalize", [False, True], ids=["plain", "normalize"])
@pytest.mark.parametrize("lengths", [[1100, 3, 0, 40], [0, 1500]], ids=str)
def test_more_threads_than_heads_cut_long_sequences(one_thread, lengths, normalize):
    *tensors, cu_seqlens = draw(lengths, heads=1, dim=24, width=40, normalize=normalize)
    run = partial(attend, cu_seqlens=cu_seqlens, normalize=normalize, backend="cpp")
    expected = everything(run, *tensors)
    for threads in (2, 7):
        torch.set_num_threads(threads)
        first, second = (everything(run, *tensors) for _ in range(2))
        torch.testing.assert_close(first, expected)
        assert all(map(torch.equal, first, second)), "the second time gives other bits"


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_sequence_is_the_plain_call(backend):
    q, k, v, state, cu_seqlens = draw([150])
    expected = attend(q, k, v, state, backend=backend)
    found = attend(q, k, v, state, backend=backend, cu_seqlens=cu_seqlens)
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shape", [(2, 0, 3), (2, 3, 0), (1, 2, 2)], ids=str)
def test_empty_heads_and_rows(backend, shape):
    heads, dim, width = shape
    lengths = [0, 0] if dim and width else [5, 0, 4]
    *tensors, cu_seqlens = draw(lengths, heads=heads, dim=dim, width=width)
    found = everything(partial(attend, cu_seqlens=cu_seqlens, backend=backend), *tensors)
    torch.testing.assert_close(found, everything(loop(cu_seqlens, backend="reference"), *tensors))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("which", [0, 1, 2], ids="qkv")
def test_nan_stays_in_its_sequence(backend, which):
    *tensors, cu_seqlens = draw([30, 40, 30], state=False)
    tensors = [x.requires_grad_() for x in tensors[:3]]
    run = partial(causal_linear_attention, cu_seqlens=cu_seqlens, backend=backend)
    clean, clean_grads = (run(*tensors), torch.autograd.grad(run(*tensors).sum(), tensors))
    with torch.no_grad():
        tensors[which][0, 1, 50] = float("nan")
    out = run(*tensors)
    for x, y in zip((out, *torch.autograd.grad(out.sum(), tensors)), (clean, *clean_grads), strict=True):
        assert torch.equal(x[:, 0], y[:, 0]), "another head changed"
        assert torch.equal(x[:, 1, :30], y[:, 1, :30]), "the sequence before changed"
        assert torch.equal(x[:, 1, 70:], y[:, 1, 70:]), "the sequence after changed"
    assert out[0, 1, 50:70].isnan().any() and not out[0, 1, 30:50].isnan().any()


@pytest.mark.parametrize("longest", [CHUNK, 512])
def test_chunks_at_most_triple_the_rows(longest):
    chance = random.Random(3)
    for _ in range(100):
        lengths = [chance.choice((0, 1, 2, 3, 70, 1000)) for _ in range(chance.randint(1, 9))] + [1]
        chunks = packed._cut(bounds(lengths), sum(lengths), longest)
        assert len(chunks.positions) == chunks.size * len(chunks.first) <= 3 * sum(lengths)


@pytest.mark.parametrize("name", ["causal", "bidirectional"])
def test_cost_in_pytorch_does_not_grow_with_the_number_of_sequences(one_by_one, name):
    def made(count):
        q, k, v, _, cu_seqlens = draw([2048 // count] * count, dim=8, width=8, dtype=torch.float32)
        leaves = [x.requires_grad_() for x in (q, k, v)]
        run = (
            linear_attention if name == "bidirectional" else partial(causal_linear_attention, backend="torch")
        )
        with Made() as tensors:
            run(*leaves, cu_seqlens=cu_seqlens).sum().backward()
        return sum(tensors.new)

    assert made(128) <= 1.5 * made(4)


@cpp
def test_states_that_are_not_wanted_are_not_made():
    q, k, v, _, cu_seqlens = draw([5, 6])
    _, final, inverse, kept = operators.forward(q, k, v, None, False, 0.0, True, cu_seqlens, False)
    assert len(final) == 0
    *_, grad_state = operators.backward(v, None, q, k, v, None, inverse, kept, False, 0.0, None, cu_seqlens)
    assert len(grad_state) == 0


@cpp
@pytest.mark.parametrize("wanted", [False, True], ids=["out", "state"])
def test_opcheck(wanted):
    q, k, v, state, cu_seqlens = draw([5, 0, 9], normalize=True)
    state = state if wanted else None
    arguments = (q, k, v, state, True, 1e-6, True, cu_seqlens, wanted)
    assert set(torch.library.opcheck(operators.forward, arguments).values()) == {"SUCCESS"}
    _, final, inverse, kept = operators.forward(*arguments)
    arguments = (v, final if wanted else None, q, k, v, state, inverse, kept, True, 1e-6, None, cu_seqlens)
    assert set(torch.library.opcheck(operators.backward, arguments).values()) == {"SUCCESS"}


@cpp
@pytest.mark.parametrize(
    "cu_seqlens", [[1, 9], [0, 8], [0, 6, 4, 9], [0, -1, 9]], ids=["start", "end", "decreasing", "negative"]
)
def test_the_operator_itself_refuses_what_would_read_beyond_a_tensor(cu_seqlens):
    q, k, v, *_ = draw([9])
    with pytest.raises(RuntimeError, match="cu_seqlens must start at 0, never decrease and end at N"):
        operators.forward(q, k, v, None, False, 0.0, False, torch.tensor(cu_seqlens).int(), False)


@pytest.mark.parametrize("backend", BACKENDS)
def test_compiles_without_graph_break(backend):
    torch._dynamo.reset()  # what other tests compiled counts against the limit of variants
    tracer = "eager" if backend == "torch" else "aot_eager"  # its graph is long
    compiled = torch.compile(attend, fullgraph=True, backend=tracer)
    *tensors, cu_seqlens = draw([17, 0, 3, 20])
    options = {"cu_seqlens": cu_seqlens, "backend": backend}
    expected = everything(partial(attend, **options), *tensors)
    torch.testing.assert_close(everything(partial(compiled, **options), *tensors), expected)
    for options["cu_seqlens"] in (bounds([1, 29, 10, 0]), bounds([0, 0, 40, 0])):  # the same graph
        torch.testing.assert_close(compiled(*tensors, **options), attend(*tensors, **options))
    options["cu_seqlens"] = bounds([1, 2, 3, 4])
    with pytest.raises(RuntimeError, match="cu_seqlens must start at 0, never decrease and end at N"):
        compiled(*tensors, **options)


@cpp
def test_compiled_gradients_without_the_states():
    torch._dynamo.reset()
    compiled = torch.compile(causal_linear_attention, fullgraph=True, backend="aot_eager")
    for lengths in ([5, 0, 9], [3, 11]):
        q, k, v, _, cu_seqlens = draw(lengths)
        leaves = [x.requires_grad_() for x in (q, k, v)]
        found, expected = (
            torch.autograd.grad(run(*leaves, cu_seqlens=cu_seqlens).square().sum(), leaves)
            for run in (compiled, causal_linear_attention)
        )
        torch.testing.assert_close(found, expected)


def test_bidirectional_compiles_without_graph_break():
    torch._dynamo.reset()
    q, k, v, _, cu_seqlens = draw([40, 0, 3])
    compiled = torch.compile(linear_attention, fullgraph=True, backend="aot_eager")
    expected = linear_attention(q, k, v, normalize=True, cu_seqlens=cu_seqlens)
    torch.testing.assert_close(compiled(q, k, v, normalize=True, cu_seqlens=cu_seqlens), expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_tensors_without_numbers_have_the_right_shapes(backend):
    with FakeTensorMode():
        q, k, v, state, cu_seqlens = draw([4, 5], heads=2, dim=4, width=3)
        if backend == "torch":
            q, k, v, state, cu_seqlens = (x.to("meta") for x in (q, k, v, state, cu_seqlens))
        out, final = attend(q, k, v, state, cu_seqlens=cu_seqlens, backend=backend)
    assert out.shape == (1, 2, 9, 3) and final.shape == (2, 2, 4, 3)


@pytest.mark.parametrize("backend", BACKENDS)
def test_autocast(backend):
    q, k, v, _, cu_seqlens = draw([20, 30], dtype=torch.float32)
    run = partial(causal_linear_attention, cu_seqlens=cu_seqlens, backend=backend, normalize=True)
    expected = run(q, k, v)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(run(q, k, v), expected), "the sums are cast down"
        assert torch.equal(run(q.bfloat16(), k, v), run(*(x.bfloat16() for x in (q, k, v))))


def masked(q, k, v, cu_seqlens, normalize):
    """Bidirectional attention by its definition: weights between the sequences are zero."""
    places = torch.arange(q.shape[2])
    of_place = torch.searchsorted(cu_seqlens[1:].contiguous(), places, right=True)
    weights = (q @ k.mT) * (of_place[:, None] == of_place)
    return weights @ v / (weights.sum(-1, keepdim=True) + 1e-6 if normalize else 1.0)


def test_random_packings_bidirectional(one_by_one):
    chance = random.Random(2)
    for _ in range(25):
        given = packing(chance)
        q, k, v, _, cu_seqlens = draw(**given)
        leaves, results = [x.requires_grad_() for x in (q, k, v)], []
        for run in (linear_attention, masked):
            out = run(*leaves, normalize=given["normalize"], cu_seqlens=cu_seqlens)
            results.append([out, *torch.autograd.grad(out.square().sum(), leaves)])
        torch.testing.assert_close(*results)


def test_bidirectional_derivatives_and_padding():
    q, k, v, _, cu_seqlens = draw([6, 0, 20], heads=1, dim=2, width=2)
    mask = torch.zeros(1, 26, dtype=torch.bool)
    mask[0, 22:] = True
    run = partial(linear_attention, normalize=True, cu_seqlens=cu_seqlens, padding_mask=mask)
    tensors = [x.requires_grad_() for x in (q, k, v)]
    assert gradcheck(run, tensors, fast_mode=True) and gradgradcheck(run, tensors, fast_mode=True)
    alone = linear_attention(*(x[:, :, 6:22] for x in tensors), normalize=True)
    torch.testing.assert_close(run(*tensors)[:, :, 6:22], alone)


INT = torch.int32


@pytest.mark.parametrize("run", [causal_linear_attention, linear_attention])
@pytest.mark.parametrize(
    ("cu_seqlens", "message"),
    [
        ([0, 5, 9], "cu_seqlens is of type list; expected a torch.Tensor"),
        (torch.tensor([0.0, 9.0]), "cu_seqlens has dtype torch.float32; expected torch.int32 or torch.int64"),
        (torch.zeros(1, 2, dtype=INT), r"cu_seqlens has shape \(1, 2\); expected \(S \+ 1,\) for S >= 1"),
        (torch.zeros(1, dtype=INT), r"cu_seqlens has shape \(1,\); expected \(S \+ 1,\) for S >= 1"),
        (torch.zeros(3, dtype=INT, device="meta"), "cu_seqlens is on meta; expected cpu, the device of q"),
        (torch.tensor([1, 9], dtype=INT), "cu_seqlens starts at 1; expected 0"),
        (torch.tensor([0, 7, 5, 9], dtype=INT), "cu_seqlens decreases from 7 to 5; expected numbers that"),
        (torch.tensor([0, 4, 10], dtype=INT), "cu_seqlens ends at 10; expected 9, the length of q"),
        (torch.tensor([0, 4, 8], dtype=INT), "cu_seqlens ends at 8; expected 9, the length of q"),
    ],
)
def test_bad_bounds_are_named(run, cu_seqlens, message):
    x = torch.zeros(1, 2, 9, 4)
    with pytest.raises(ValueError, match=message):
        run(x, x, x, cu_seqlens=cu_seqlens)


@pytest.mark.parametrize(
    ("batch", "state", "message"),
    [
        (2, None, r"q has shape \(2, 2, 9, 4\); expected a batch of 1 with cu_seqlens"),
        (1, (1, 2, 4, 4), r"state has shape \(1, 2, 4, 4\); expected \(2, 2, 4, 4\)"),
    ],
)
def test_bad_shapes_are_named(batch, state, message):
    x, state = torch.zeros(batch, 2, 9, 4), None if state is None else torch.zeros(state)
    with pytest.raises(ValueError, match=message):
        causal_linear_attention(x, x, x, initial_state=state, cu_seqlens=bounds([4, 5]))


def test_bounds_that_differ_between_examples_of_vmap_are_named():
    x, cu_seqlens = torch.zeros(2, 1, 2, 9, 4), torch.tensor([[0, 9], [0, 9]])
    with pytest.raises(ValueError, match="cu_seqlens differs between the examples of torch.vmap"):
        torch.vmap(lambda x, n: causal_linear_attention(x, x, x, cu_seqlens=n))(x, cu_seqlens)


def test_bidirectional_lengths_must_agree():
    x = torch.zeros(1, 2, 9, 4)
    with pytest.raises(ValueError, match="k has a shape that does not fit q"):
        linear_attention(x[:, :, :8], x, x, cu_seqlens=bounds([4, 5]))
