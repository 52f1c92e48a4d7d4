"""The operator against its definition: values, gradients of two orders, states, dtypes, odd shapes."""

import subprocess
import sys

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from causal_linear_attention import (
    causal_linear_attention,
    causal_linear_attention_step,
    chunked,
    linear_attention,
    reference,
)
from causal_linear_attention.chunked import CHUNK, SEGMENT, SPAN
from tests.helpers.counting import Made, kept_for_backward
from tests.helpers.definition import definition, draw, run
from tests.operator.test_kernels import kernel


def inputs(*shape, dtype=torch.float64, state=True, grad=True):
    """q, k, v and the state, or None."""
    return [None if x is None else x.requires_grad_(grad) for x in draw(shape, dtype, False, state)[:4]]


def error(x, truth):
    return float((x.double() - truth.double()).norm() / truth.double().norm().clamp_min(1e-30))


@pytest.mark.parametrize("length", [0, 1, 2, 150])
@pytest.mark.parametrize("with_state", [False, True], ids=["zero", "state"])
def test_both_definitions_are_one(length, with_state):
    """test_kernels.py compares every backend with the first."""
    given = inputs(2, 3, length, 5, 7, state=with_state)
    torch.testing.assert_close(reference.quadratic(*given), reference.recurrent(*given))


@pytest.mark.parametrize("normalize", [False, True], ids=["plain", "normalize"])
@pytest.mark.parametrize("with_state", [False, True], ids=["zero", "state"])
@pytest.mark.parametrize("length", [1, 5, CHUNK + 2])
def test_gradcheck(length, with_state, normalize):
    q, k, v, _ = inputs(1, 2, length, 3, 2, grad=False)
    q, k = q.abs() + 0.1, k.abs() + 0.1
    s = torch.rand(1, 2, 3, 2 + normalize, dtype=torch.float64) if with_state else None
    tensors = [x.requires_grad_() for x in (q, k, v, s) if x is not None]

    def run(q, k, v, s=None):
        return causal_linear_attention(q, k, v, initial_state=s, return_state=True, normalize=normalize)

    assert gradcheck(run, tensors, fast_mode=length > 5)
    assert gradgradcheck(run, tensors, fast_mode=True)


@pytest.mark.parametrize("normalize", [False, True], ids=["plain", "normalize"])
def test_state_splits_the_sequence_anywhere(normalize):
    q, k, v, _ = inputs(2, 2, 200, 4, 5, state=False)
    q, k = q.abs(), k.abs()
    whole, last = causal_linear_attention(q, k, v, normalize=normalize, return_state=True)
    for cut in (0, 1, 64, 131, 200):
        head, state = causal_linear_attention(
            q[:, :, :cut], k[:, :, :cut], v[:, :, :cut], normalize=normalize, return_state=True
        )
        tail, final = causal_linear_attention(
            q[:, :, cut:],
            k[:, :, cut:],
            v[:, :, cut:],
            normalize=normalize,
            initial_state=state,
            return_state=True,
        )
        torch.testing.assert_close(torch.cat([head, tail], 2), whole)
        torch.testing.assert_close(final, last)


@pytest.mark.parametrize("backend", ["auto", "torch"])
def test_saved_tensors_grow_linearly(backend):
    """They are the inputs, of the compiled kernels, too."""

    def saved(length):
        q, k, v, _ = inputs(1, 2, length, 8, 8, dtype=torch.float32, state=False)
        return kept_for_backward(lambda: causal_linear_attention(q, k, v, backend=backend).sum().backward())

    short = saved(1024)
    assert short <= 3 * 2 * 8 * 1024 + 8 * 8 * 2 and saved(4096) <= 4 * short


def test_backward_temporaries_do_not_grow_with_length_squared():
    """No tensor made on the way, forward or backward, is larger than an input or a segment's scores."""
    length, dim = 2 * SPAN, 16
    q, k, v, _ = inputs(1, 1, length, dim, dim, dtype=torch.float32, state=False)
    with Made() as made:
        causal_linear_attention(q, k, v, backend="torch").sum().backward()
    assert max(made.every) <= max(length * dim, SPAN * CHUNK)


def test_a_head_of_many_chunks_has_the_derivatives_of_the_definition(monkeypatch):
    """First and second ones, of a segment whose chunks are summed in runs."""
    monkeypatch.setattr(chunked, "SPAN", 32 * CHUNK)
    given = inputs(1, 2, 32 * CHUNK - 10, 2, 3)
    found = []
    for backend in ("torch", "reference"):
        out = causal_linear_attention(*given[:3], initial_state=given[3], backend=backend)
        grads = torch.autograd.grad(out.square().sum(), given, create_graph=True)
        second = torch.autograd.grad(sum(x.square().mean() for x in grads), given)
        found.append([out, *grads, *second])
    for x, y in zip(*found, strict=True):
        torch.testing.assert_close(x, y)


def test_non_causal_matches_definition_and_ignores_padding():
    q, k, v, _ = inputs(2, 2, 30, 4, 5, state=False)
    mask = torch.zeros(2, 30, dtype=torch.bool)
    mask[1, 20:] = True
    out = linear_attention(q, k, v, padding_mask=mask)
    torch.testing.assert_close(out[:1], (q @ (k.transpose(-2, -1) @ v))[:1])
    alone = linear_attention(q[1:, :, :20], k[1:, :, :20], v[1:, :, :20])
    torch.testing.assert_close(out[1:, :, :20], alone)
    for x in (k, v):
        garbage = [y.detach().clone() if y is x else y for y in (k, v)]
        garbage[0 if x is k else 1][1, :, 20:] = torch.nan
        torch.testing.assert_close(linear_attention(q, *garbage, padding_mask=mask), out)
    assert gradcheck(
        lambda q, k, v: linear_attention(q.abs(), k.abs(), v, normalize=True, padding_mask=mask),
        (q, k, v),
        fast_mode=True,
    )


@pytest.mark.parametrize("name", ["bidirectional", "torch", "reference", "step"])
@pytest.mark.parametrize("normalize", [False, True], ids=["plain", "normalize"])
def test_autocast_does_not_cast_the_sums_down(normalize, name):
    q, k, v = (torch.rand(1, 2, 300, 8, requires_grad=True) for _ in range(3))
    state = torch.rand(1, 2, 8, 8 + normalize)

    def run():
        if name == "bidirectional":
            return linear_attention(q, k, v, normalize=normalize)
        if name == "step":
            rows = (x[:, :, 0] for x in (q, k, v))
            return causal_linear_attention_step(*rows, state, normalize=normalize)[0]
        return causal_linear_attention(q, k, v, normalize=normalize, backend=name)

    expected = run()
    grads = torch.autograd.grad(expected.square().sum(), (q, k, v))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = run()
    found = torch.autograd.grad(out.square().sum(), (q, k, v))
    assert torch.equal(out, expected)
    for x, y in zip(found, grads, strict=True):
        torch.testing.assert_close(x, y)


def test_bidirectional_promotes_mixed_types_under_autocast():
    q, k, v = (torch.rand(1, 2, 30, 8) for _ in range(3))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = linear_attention(q, k.bfloat16(), v.bfloat16())
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out, linear_attention(q.bfloat16(), k.bfloat16(), v.bfloat16()))


@pytest.mark.parametrize("features", [torch.relu, lambda x: x], ids=["positive", "signed"])
@pytest.mark.parametrize("length", [70, 2 * SEGMENT + 30])
def test_bfloat16_products_of_the_processor(length, features, monkeypatch):
    """Errors of output, state and gradients are at most twice the plain formula's in bfloat16."""
    monkeypatch.setattr(chunked, "_NATIVE_BFLOAT16", True)
    monkeypatch.setattr(chunked, "SPAN", SEGMENT)
    q, k, *rest = draw((1, 2, length, 16, 16), torch.bfloat16, False)
    given = features(q), features(k), *rest
    found, truth = run(chunked.chunked, *given), definition(*(x.double() for x in given), False)
    for x, y, p in zip(found, truth, definition(*given, False), strict=True):
        assert error(x, y) <= 2 * error(p, y)


@pytest.mark.parametrize("backend", ["auto", "torch"])
@pytest.mark.parametrize("normalize", [False, True], ids=["plain", "normalize"])
@pytest.mark.parametrize("shape", [(2, 2, 70, 0, 3), (2, 2, 70, 3, 0), (1, 1, 2, 0, 0), (0, 2, 70, 3, 2)])
def test_empty_heads_and_batches(shape, normalize, backend):
    given = draw(shape, torch.float32, normalize, state=False)
    found, expected = (run(kernel(name, normalize), *given) for name in (backend, "reference"))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": torch.zeros(2, 3, 4)}, r"q has shape \(2, 3, 4\); expected 4 dimensions"),
        ({"k": torch.zeros(1, 2, 6, 4)}, r"k has a shape that does not fit q"),
        ({"k": torch.zeros(1, 2, 5, 3)}, r"k has a shape that does not fit q"),
        ({"k": torch.zeros(2, 2, 5, 4)}, r"k has a shape that does not fit q"),
        ({"v": torch.zeros(1, 1, 5, 3)}, r"v has a shape that does not fit k"),
        ({"v": torch.zeros(1, 2, 6, 3)}, r"v has a shape that does not fit k"),
        ({"v": torch.zeros(1, 2, 5, 3, dtype=torch.float64)}, r"v has dtype torch.float64"),
        ({"q": torch.zeros(1, 2, 5, 4, dtype=torch.int64)}, r"q has dtype torch.int64"),
        ({"k": torch.zeros(1, 2, 5, 4, dtype=torch.complex64)}, r"k has dtype torch.complex64"),
        ({"v": torch.zeros(1, 2, 5, 3, device="meta")}, r"v is on meta; expected cpu"),
        ({"initial_state": torch.zeros(1, 2, 3, 4)}, r"state has shape .* expected \(1, 2, 4, 3\)"),
        ({"initial_state": torch.zeros(1, 2, 4, 3).half()}, r"state has dtype torch.float16"),
        ({"initial_state": torch.zeros(1, 2, 4, 3, device="meta")}, r"state is on meta; expected cpu"),
        ({"initial_state": torch.zeros(2, 4, 3)}, r"state has shape .* expected \(1, 2, 4, 3\)"),
        ({"eps": None}, "eps is None; expected a finite number"),
        ({"normalize": "no"}, "normalize is 'no'; expected True or False"),
        ({"backend": "magic"}, r"backend is 'magic'; expected one of auto, cpp, cuda, triton, torch, refer"),
    ],
)
def test_bad_arguments_are_named(change, message):
    arguments = {
        "q": torch.zeros(1, 2, 5, 4),
        "k": torch.zeros(1, 2, 5, 4),
        "v": torch.zeros(1, 2, 5, 3),
    }
    with pytest.raises(ValueError, match=message):
        causal_linear_attention(**{**arguments, **change})


def test_a_nested_tensor_is_refused():
    """Made here, since it makes torch import its distributed tensors."""
    q, k, v = torch.zeros(1, 2, 5, 4), torch.zeros(1, 2, 5, 4), torch.zeros(1, 2, 5, 3)
    nested = torch.nested.nested_tensor([q[0]], layout=torch.jagged)
    with pytest.raises(ValueError, match="q has layout nested; expected a dense tensor"):
        causal_linear_attention(nested, k, v)


def test_importable_without_fairseq():
    code = "import sys; sys.modules['fairseq'] = None; import causal_linear_attention"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_compiles_without_graph_break():
    torch._dynamo.reset()  # what other tests compiled counts against the limit of variants
    q, k, v, _ = inputs(1, 2, 130, 4, 4, dtype=torch.float32, state=False)
    for backend in ("auto", "torch"):
        compiled = torch.compile(causal_linear_attention, fullgraph=True, backend="aot_eager")
        out = compiled(q, k, v, backend=backend)
        torch.testing.assert_close(out, causal_linear_attention(q, k, v, backend=backend))
        q.grad = None
        out.sum().backward()
        assert q.grad is not None


@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_gradients_of_pytorch_pass_what_is_not_finite_on_as_the_definition_does(name):
    tensors = dict(zip("qkv", inputs(1, 1, 150, 3, 2, state=False, grad=False)[:3], strict=True))
    tensors[name][0, 0, 70, 1] = float("nan")
    leaves = [x.requires_grad_() for x in tensors.values()]
    grads = torch.autograd.grad(causal_linear_attention(*leaves, backend="torch").sum(), leaves)
    expected = torch.autograd.grad(recurrence(*leaves).sum(), leaves)
    for one, other in zip(grads, expected, strict=True):
        assert torch.equal(one.isnan(), other.isnan())


def recurrence(q, k, v):
    """The recurrence in operations that multiply no number that is not part of a sum."""
    sums = torch.cumsum(k.unsqueeze(-1) * v.unsqueeze(-2), 2)
    return (q.unsqueeze(-1) * sums).sum(-2)


@pytest.mark.parametrize("grad", [False, True])
def test_epsilon_is_added_to_every_denominator(grad):
    """1 / (1 + 1) for one position of ones and an epsilon of 1."""
    q, k, v = (torch.ones(1, 1, 1, 1, requires_grad=grad) for _ in range(3))
    state = torch.zeros(1, 1, 1, 2)
    found = [
        causal_linear_attention_step(q[:, :, 0], k[:, :, 0], v[:, :, 0], state, normalize=True, eps=1.0)[0],
        linear_attention(q, k, v, normalize=True, eps=1.0),
        linear_attention(q, k, v, normalize=True, eps=1.0, cu_seqlens=torch.tensor([0, 0, 1]).int()),
        *(
            causal_linear_attention(q, k, v, normalize=True, eps=1.0, backend=backend)
            for backend in ("auto", "torch", "reference")
        ),
    ]
    assert [out.item() for out in found] == [0.5] * 6


@pytest.mark.parametrize("backend", ["auto", "torch", "reference"])
@pytest.mark.parametrize(("scale", "sizes"), [(1000, (200, 2e-2, 0.2)), (1e-9, (2e4, 2e4, 200))])
def test_a_scale_may_leave_the_range_of_float16(scale, sizes, backend):
    """Where the output does not; gradients with and without a graph."""
    given = [torch.full((1, 1, 4, 4), x, dtype=torch.float16) for x in sizes]
    weight = torch.full((1, 1, 4, 4), 2e-3)

    def run(*given, backend=backend, create_graph=False):
        leaves = [x.clone().requires_grad_() for x in given]
        out = causal_linear_attention(*leaves, scale=scale, backend=backend)
        loss = (out.double() * weight).sum()
        return out, *torch.autograd.grad(loss, leaves, create_graph=create_graph)

    expected = run(*(x.double() for x in given), backend="reference")
    for create_graph in (False, True):
        found = run(*given, create_graph=create_graph)
        assert {x.dtype for x in found} == {torch.float16}
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one.double(), other, rtol=2e-3, atol=1e-7)


def test_float16_autocast_keeps_the_range_of_float32():
    """300 * 300 is beyond float16, and so is the rule of bfloat16 autocast."""
    q, k = (torch.full((1, 1, 1, 1), 300.0) for _ in range(2))
    for narrow, autocast, expected in (
        (torch.bfloat16, torch.float16, torch.float32),
        (torch.float16, torch.float16, torch.float32),
        (torch.bfloat16, torch.bfloat16, torch.bfloat16),
    ):
        with torch.autocast("cpu", dtype=autocast):
            out = causal_linear_attention(q, k, torch.ones(1, 1, 1, 1, dtype=narrow))
        assert out.dtype == expected and out.item() == pytest.approx(90_000, rel=0.01)
