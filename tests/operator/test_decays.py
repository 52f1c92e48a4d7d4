"""Decays: every backend against the recurrence, and against definitions of others."""

import importlib.util
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from causal_linear_attention import (
    causal_linear_attention,
    causal_linear_attention_step,
    extension,
    operators,
    reference,
    select_backend,
    selection,
)
from tests.helpers.cases import exhaustive
from tests.helpers.counting import kept_for_backward

cpp = pytest.mark.skipif(not extension.loaded("cpp"), reason=extension.reason("cpp") or "loaded")
BACKENDS = [pytest.param("cpp", marks=cpp), "torch"]
INF = float("inf")


@pytest.fixture(autouse=True)
def restored():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
    if extension.loaded("cpp"):
        extension.choose_instruction_set("")


def of_heads(shape):
    return -torch.rand(shape[1], dtype=torch.float64)


def mild(shape):
    return -torch.rand(shape, dtype=torch.float64)


def wild(shape):
    """Some of 0, some of -60 and -inf, some that grow."""
    numbers = mild(shape)
    for value in (0.0, -60.0, -INF, 0.3):
        numbers[torch.rand(shape) < 0.1] = value
    return numbers


DECAYS = {"heads": of_heads, "positions": mild, "extremes": wild}


def draw(decays, shape, width=3, normalize=False, sequences=None):
    """q, k, v, the initial state and log_decay, in float64."""
    batch, heads, length, dim = shape
    q, k = (torch.rand(shape, dtype=torch.float64) + 0.1 for _ in range(2))
    v = torch.randn(batch, heads, length, width, dtype=torch.float64)
    state = torch.rand(sequences or batch, heads, dim, width + normalize, dtype=torch.float64)
    return q, k, v, state, decays((batch, heads, length))


def attend(q, k, v, state, log_decay, **options):
    return causal_linear_attention(
        q, k, v, log_decay=log_decay, initial_state=state, return_state=True, **options
    )


def everything(run, *given):
    """Output, state and all gradients, of random weights of both."""
    leaves = [x.detach().requires_grad_() for x in given]
    outputs, weights = run(*leaves), torch.Generator().manual_seed(0)
    loss = sum(
        (x * torch.randn(x.shape, generator=weights, dtype=torch.float64).to(x)).sum() for x in outputs
    )
    return [*(x.detach() for x in outputs), *torch.autograd.grad(loss, leaves)]


def test_both_definitions_are_one():
    q, k, v, state, decay = draw(wild, (2, 3, 40, 4))
    torch.testing.assert_close(
        reference.quadratic(q, k, v, state, decay), reference.recurrent(q, k, v, state, decay)
    )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("decays", DECAYS.values(), ids=DECAYS)
@pytest.mark.parametrize("normalize", [False, True], ids=["plain", "normalize"])
def test_values_and_gradients(backend, decays, normalize):
    for length in (1, 16, 17, 65, 130):
        for cu_seqlens in (None, torch.tensor([0, length // 3, length // 3, length])):
            sizes = (2, 3, length, 5) if cu_seqlens is None else (1, 3, length, 5)
            given = draw(decays, sizes, 4, normalize, None if cu_seqlens is None else 3)
            run = partial(attend, normalize=normalize, cu_seqlens=cu_seqlens, scale=0.7)
            expected = everything(partial(run, backend="reference"), *given)
            found = everything(partial(run, backend=backend), *given)
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("value", [0.0, -60.0, -INF], ids=str)
def test_extremes_at_the_ends_of_chunks(backend, value):
    """Chunks are of 16 positions in C++ and of 64 in PyTorch."""
    q, k, v, state, decay = draw(mild, (1, 1, 131, 3), 2)
    for places in ([0], [15], [16], [31, 32], [63], [64], [65], [127, 128, 129], [130], slice(None)):
        log_decay = decay.clone()
        log_decay[..., places] = value
        given = (q, k, v, state, log_decay)
        expected = everything(partial(attend, backend="reference"), *given)
        found = everything(partial(attend, backend=backend), *given)
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("backend", BACKENDS)
def test_decays_of_the_inputs_type_are_computed_in_float32(backend):
    q, k, v, _, _ = (x.bfloat16() for x in draw(mild, (1, 2, 70, 4)))
    for log_decay in (-torch.rand(2), -torch.rand(1, 2, 70)):
        log_decay = log_decay.bfloat16().requires_grad_()
        out = causal_linear_attention(q, k, v, log_decay=log_decay, backend=backend)
        wide = causal_linear_attention(q, k, v, log_decay=log_decay.float(), backend=backend)
        assert torch.equal(out, wide)
        (grad,) = torch.autograd.grad(out.sum(), log_decay)
        assert grad.dtype == torch.bfloat16 and grad.isfinite().all()


@pytest.mark.parametrize("backend", [*BACKENDS, "reference"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_decays_of_autocasts_type_are_computed_in_float32(backend, dtype):
    q, k, v, state, decay = (x.float() for x in draw(mild, (1, 2, 70, 4)))
    decay = decay.to(dtype)
    with torch.autocast("cpu", dtype):
        found = attend(q, k, v, state, decay, backend=backend)
        steps = step(q, k, v, state, decay)
    torch.testing.assert_close(found, attend(q, k, v, state, decay.float(), backend=backend))
    torch.testing.assert_close(steps, step(q, k, v, state, decay.float()))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("decays", [of_heads, mild], ids=["heads", "positions"])
def test_the_inputs_are_kept_for_the_backward_pass(backend, decays):
    """And by PyTorch a state for every 1,024 positions."""
    given = [x.float().requires_grad_() for x in draw(decays, (1, 2, 5000, 8), 8)]
    inputs = sum(x.numel() for x in given)
    expanded = 2 * 5000 if backend == "torch" and decays is of_heads else 0  # a view, of no memory
    states = 4 * 2 * 8 * 8 if backend == "torch" else 0
    assert kept_for_backward(lambda: attend(*given, backend=backend)) <= inputs + expanded + states


@cpp
@pytest.mark.parametrize("isa", extension.available_instruction_sets())
def test_instruction_sets_types_and_threads(isa):
    """The error is at most twice the plain formula's, with a head split over threads and strided rows."""
    extension.choose_instruction_set(isa)
    given = draw(mild, (1, 1, 1100, 24), 40)
    given[-1][..., 700] = -INF
    truth = everything(partial(attend, backend="torch"), *given)
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        wide = torch.promote_types(dtype, torch.float32)
        tensors = [x.transpose(1, 2).contiguous().transpose(1, 2).to(dtype) for x in given[:3]]
        tensors += [x.to(wide) for x in given[3:]]
        plain = everything(partial(attend, backend="torch"), *tensors)
        for threads in (1, 3):
            torch.set_num_threads(threads)
            found = everything(partial(attend, backend="cpp"), *tensors)
            for f, t, p in zip(found, truth, plain, strict=True):
                error, allowed = ((x.double() - t).norm() for x in (f, p))
                assert error <= 2 * allowed + 32 * torch.finfo(f.dtype).eps * t.norm()


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_of_decays_keep_their_digits_over_65536_positions(backend):
    q, k, v, state, decay = draw(of_heads, (1, 1, 65536, 2), 2)
    decay = (decay * 1e-3)[:, None].expand(1, 65536).unsqueeze(0).clone()
    decay[..., 30_000] = -INF
    truth = everything(partial(attend, backend="torch"), q, k, v, state, decay)[-1]
    given = [x.float() for x in (q, k, v, state, decay)]
    found = everything(partial(attend, backend=backend), *given)[-1]
    assert (found - truth).norm() <= 2e-5 * truth.norm()
    assert found[..., 30_000] == 0


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("decays", [of_heads, mild], ids=["heads", "positions"])
@pytest.mark.parametrize("normalize", [False, True], ids=["plain", "normalize"])
def test_derivatives_of_both_orders(backend, decays, normalize):
    given = [x.requires_grad_() for x in draw(decays, (1, 2, 20, 3), 2, normalize)]
    given[0] = torch.rand(1, 4, 20, 3, dtype=torch.float64, requires_grad=True)
    run = partial(attend, normalize=normalize, backend=backend, scale=0.7)
    assert gradcheck(run, given, fast_mode=True) and gradgradcheck(run, given, fast_mode=True)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("sequences", [None, 2], ids=["plain", "packed"])
@pytest.mark.parametrize("length", [0, 20])
@pytest.mark.parametrize("which", range(5), ids=["q", "k", "v", "state", "decay"])
def test_second_derivatives_of_one_input_alone(backend, sequences, length, which):
    """The final state does not depend on q, and without positions nothing depends on the decays."""
    given = draw(mild, (1, 2, length, 3), 2, sequences=sequences)
    leaf = given[which].requires_grad_()
    cu_seqlens = None if sequences is None else torch.tensor([0, length // 3, length])
    run = partial(attend, cu_seqlens=cu_seqlens, backend=backend)
    loss = leaf.sum() + sum(x.square().sum() for x in run(*given))
    graphs = {"retain_graph": True}, {"create_graph": True}
    once, again = (torch.autograd.grad(loss, leaf, **x, materialize_grads=True) for x in graphs)
    torch.testing.assert_close(once, again)
    if length:
        assert gradgradcheck(lambda x: run(*given[:which], x, *given[which + 1 :]), leaf, fast_mode=True)


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_a_decay_hides_is_not_seen(backend):
    """NaN in a decay reaches later rows only, NaN before -inf no row after it. Padding keeps the state."""
    q, k, v, state, decay = draw(mild, (1, 1, 40, 4))
    clean, _ = attend(q, k, v, state, decay, backend=backend)
    bad = decay.clone()
    bad[..., 20] = torch.nan
    out, _ = attend(q, k, v, state, bad, backend=backend)
    torch.testing.assert_close(out[:, :, :20], clean[:, :, :20])
    assert out[:, :, 20:].isnan().all()
    decay[..., 20] = -INF
    clean = attend(q, k, v, state, decay, backend=backend)
    for x in (k, v, state):
        before = x.clone()
        (x if x is state else x[:, :, 10])[:] = torch.nan
        out, final = attend(q, k, v, state, decay, backend=backend)
        torch.testing.assert_close((out[:, :, 20:], final), (clean[0][:, :, 20:], clean[1]))
        x.copy_(before)
    padded = [torch.nn.functional.pad(x, (0, 0, 0, 9)) for x in (q, k, v)]
    _, final = attend(*padded, state, torch.nn.functional.pad(decay, (0, 9)), backend=backend)
    torch.testing.assert_close(final, clean[1])


@pytest.mark.parametrize("backend", [*BACKENDS, "reference"])
@pytest.mark.parametrize("sequences", [None, 2], ids=["plain", "packed"])
@pytest.mark.parametrize("value", [torch.nan, INF], ids=str)
@pytest.mark.parametrize("place", [20, 100])
def test_behind_a_reset_nothing_before_it_is_seen(backend, sequences, value, place):
    """Neither by the output and the last state nor by their gradients, in the same chunk or a later one."""
    cu_seqlens = None if sequences is None else torch.tensor([0, 120, 130])
    given = draw(mild, (1, 2, 130, 4), sequences=sequences)
    given[-1][..., place] = -INF

    def behind(*given):
        leaves = [x.clone().requires_grad_() for x in given]
        out, final = attend(*leaves, backend=backend, cu_seqlens=cu_seqlens)
        found = out[:, :, place:], final
        grads = torch.autograd.grad(sum(x.sum() for x in found), leaves)
        return *found, *(x if x.shape == final.shape else x[:, :, place:] for x in grads)

    expected = behind(*given)
    for x in given[2:4]:
        before = x.clone()
        (x[0] if x is given[3] else x[:, :, 3])[:] = value
        torch.testing.assert_close(behind(*given), expected)
        x.copy_(before)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("decays", [None, of_heads, mild], ids=["none", "heads", "positions"])
def test_grouped_heads_and_layouts(backend, packed, decays):
    batch, sequences = (1, 2) if packed else (2, None)
    q = torch.rand(batch, 6, 40, 4, dtype=torch.float64)
    _, k, v, state, decay = draw(decays or mild, (batch, 2, 40, 4), sequences=sequences)
    options = {"cu_seqlens": torch.tensor([0, 15, 40]) if packed else None, "backend": backend}
    spread = [x.repeat_interleave(3, 1) for x in (k, v, state)]
    of_all = decay.repeat_interleave(3, 0 if decay.dim() == 1 else 1)
    decay, of_all = (decay, of_all) if decays else (None, None)
    out, final = attend(q, *spread, of_all, **options)
    found = attend(q, k, v, state, decay, **options)
    torch.testing.assert_close(found, (out, final[:, ::3]))
    q, k, v = (x.transpose(1, 2).contiguous() for x in (q, k, v))
    decay = decay.transpose(1, 2) if decays is mild else decay
    found = attend(q, k, v, state, decay, layout="bnhd", **options)
    torch.testing.assert_close(found, (out.transpose(1, 2), final[:, ::3]))
    x = torch.rand(1, 40, 2, 4)
    assert backend != "cpp" or causal_linear_attention(x, x, x, layout="bnhd", backend="cpp").is_contiguous()


def allocated(run):
    """What it returns, and bytes."""
    with torch.profiler.profile(profile_memory=True) as profile:
        found = run()
    return found, sum(max(event.self_cpu_memory_usage, 0) for event in profile.key_averages())


@cpp
@pytest.mark.parametrize("layout", ["bhnd", "bnhd"])
@pytest.mark.parametrize("packed", [False, True], ids=["rows", "packed"])
def test_heads_that_share_keys_repeat_no_memory(packed, layout):
    """A pass allocates its results, by head of q, and less than a copy of the keys beside."""
    batch, heads = (1, 2) if packed else (3, 2)
    sizes = [(batch, x, 256, 64) if layout == "bhnd" else (batch, 256, x, 64) for x in (8 * heads, heads)]
    q, k, v = (torch.rand(sizes[x > 0], requires_grad=True) for x in range(3))
    cu_seqlens = torch.tensor([0, 100, 256]) if packed else None
    options = {"cu_seqlens": cu_seqlens, "layout": layout, "log_decay": torch.full((heads,), -0.1)}

    out, number = allocated(lambda: causal_linear_attention(q, k, v, **options))
    size, states = 4 * q.numel(), 4 * (2 if packed else batch) * heads * 64 * 64
    assert out.is_contiguous() and number < size + states + 4 * k.numel() // 2
    grad = torch.ones_like(out)
    _, number = allocated(lambda: torch.autograd.grad(out, (q, k, v), grad))
    assert number < 3 * size + 2 * 4 * k.numel() + 8 * states + size // 8


@pytest.mark.parametrize("normalize", [False, True], ids=["plain", "normalize"])
def test_steps(normalize):
    _, k, v, state, decay = draw(wild, (2, 2, 6, 4), normalize=normalize)
    q = torch.rand(2, 4, 6, 4, dtype=torch.float64)
    out, final = attend(q, k, v, state, decay, normalize=normalize, scale=0.5)
    for i in range(6):
        tokens = [x[:, :, i] for x in (q, k, v)]
        found, state = causal_linear_attention_step(
            *tokens, state, log_decay=decay[:, :, i], scale=0.5, normalize=normalize
        )
        torch.testing.assert_close(found, out[:, :, i])
    torch.testing.assert_close(state, final)
    same = [x[:, :, 0] for x in (q[:, :2], k, v)]
    plain, _ = causal_linear_attention_step(*same, state, normalize=normalize)
    scaled, _ = causal_linear_attention_step(*same, state, scale=0.5, normalize=normalize)
    torch.testing.assert_close(scaled, plain / 2)


def compare_steps(run, dtype, device="cpu"):
    """Steps of any sizes and strides equal PyTorch's path, which runs where there are gradients."""
    wide = torch.promote_types(dtype, torch.float32)
    sizes = [(2, 3, 2, 8, 33), (1, 1, 7, 5, 300), (3, 2, 3, 64, 64), (1, 2, 2, 0, 3)]
    for batch, heads, group, dim, width in sizes:
        for normalize in (False, True):
            q, k = (torch.rand(dim, x, batch).permute(2, 1, 0).to(dtype) for x in (heads * group, heads))
            v = torch.randn(batch, width, heads).mT.to(dtype)
            state = torch.rand(batch, width + normalize, heads, dim, dtype=wide).permute(0, 2, 3, 1)
            q, k, v, state = (x.to(device) for x in (q, k, v, state))
            for decay in (None, of_heads((batch, heads)), wild((heads, batch)).T):
                decay = None if decay is None else decay.to(device, wide)
                torch.set_num_threads(1 + normalize)
                options = {"log_decay": decay, "normalize": normalize, "scale": 0.5}
                found = run(q, k, v, state, **options)
                leaf = state.clone().requires_grad_()
                expected = [x.detach() for x in causal_linear_attention_step(q, k, v, leaf, **options)]
                assert found[0].dtype == dtype and found[0].shape == (batch, heads * group, width)
                torch.testing.assert_close(found, tuple(expected), rtol=4 * torch.finfo(dtype).eps, atol=1e-5)


@cpp
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("isa", extension.available_instruction_sets())
def test_compiled_steps_of_grouped_heads(isa, dtype):
    extension.choose_instruction_set(isa)
    compare_steps(causal_linear_attention_step, dtype)


@cpp
def test_a_step_of_grouped_heads_allocates_its_results_alone():
    q, k, v = (torch.rand(2, x, 64) for x in (32, 2, 2))
    given = (q, k, v, torch.rand(2, 2, 64, 64))
    (out, state), number = allocated(lambda: causal_linear_attention_step(*given, normalize=False))
    assert number == 4 * (out.numel() + state.numel())


@pytest.mark.parametrize("normalize", [False, True], ids=["plain", "normalize"])
def test_derivatives_of_a_step_of_grouped_heads(normalize):
    *rows, state, decay = draw(mild, (2, 2, 1, 3), 2, normalize)
    q, k, v, decay = torch.rand(2, 6, 3, dtype=torch.float64), *(x[:, :, 0] for x in (*rows[1:], decay))
    given = [x.requires_grad_() for x in (q, k, v, state, decay)]

    def run(q, k, v, state, decay):
        return causal_linear_attention_step(q, k, v, state, log_decay=decay, normalize=normalize, scale=0.7)

    assert gradcheck(run, given, fast_mode=True) and gradgradcheck(run, given, fast_mode=True)


@cpp
@pytest.mark.parametrize("decays", [of_heads, mild], ids=["heads", "positions"])
def test_opcheck(decays):
    _, k, v, state, decay = draw(decays, (2, 2, 20, 3))
    q = torch.rand(2, 20, 6, 3, dtype=torch.float64).transpose(1, 2)  # by position, and so is the output
    arguments = (q, k, v, decay.exp(), state, False, 1e-6, True, None, True, 0.5)
    assert set(torch.library.opcheck(operators.decayed_forward, arguments).values()) == {"SUCCESS"}
    out, final, inverse, kept = operators.decayed_forward(*arguments)
    arguments = (out, final, q, k, v, decay.exp(), state, inverse, kept, False, 1e-6, None, None, 0.5)
    assert set(torch.library.opcheck(operators.decayed_backward, arguments).values()) == {"SUCCESS"}
    tokens = [x[:, :, 0] for x in (q, k, v)]
    arguments = (*tokens, state, False, 1e-6, decay.exp() if decay.dim() == 1 else decay[..., 0].exp(), 0.5)
    assert set(torch.library.opcheck(operators.step, arguments).values()) == {"SUCCESS"}
    for bad in (decay.exp().float(), decay.exp()[:1], decay.exp()[..., :1]):
        with pytest.raises(RuntimeError, match="decay must be"):
            operators.decayed_forward(q, k, v, bad[..., None], state, False, 1e-6, True)


def step(q, k, v, state, log_decay):
    """The first position alone."""
    if log_decay.dim() == 3:
        log_decay = log_decay[..., 0]
    return causal_linear_attention_step(q[:, :, 0], k[:, :, 0], v[:, :, 0], state, log_decay=log_decay)


@pytest.mark.parametrize(
    "run", [pytest.param(partial(attend, backend="cpp"), marks=cpp), step], ids=["all", "step"]
)
@pytest.mark.parametrize("decays", [of_heads, mild], ids=["heads", "positions"])
def test_one_graph_for_any_batch_and_length(run, decays):
    torch._dynamo.reset()
    graphs = []

    def count(graph, inputs):
        graphs.append(graph)
        return graph

    compiled = torch.compile(run, backend=count, dynamic=True, fullgraph=True)
    for batch, length in ((2, 40), (3, 50), (4, 30)):
        given = draw(decays, (batch, 2, length, 4))
        torch.testing.assert_close(compiled(*given), run(*given))
    torch._dynamo.reset()
    assert len(graphs) <= 2


@pytest.mark.parametrize("run", [pytest.param(attend, marks=cpp), step], ids=["all", "step"])
@pytest.mark.parametrize("decays", [exhaustive(of_heads), mild], ids=["heads", "positions"])
def test_an_exported_program_of_any_batch_and_length(run, decays):
    class Call(torch.nn.Module):
        def forward(self, *tensors):
            return run(*tensors)

    batch, length = torch.export.Dim("batch"), torch.export.Dim("length")
    rows = {0: batch, 2: length}
    sizes = (rows, rows, rows, {0: batch}, rows if decays is mild else {})
    program = torch.export.export(Call(), draw(decays, (2, 2, 40, 4)), dynamic_shapes=(sizes,)).module()
    for shape in ((3, 2, 40, 4), (2, 2, 70, 4)):
        given = draw(decays, shape)
        torch.testing.assert_close(program(*given), run(*given))


@pytest.mark.parametrize("backend", ["cpp", "torch"])
def test_transforms_of_torch_func(backend):
    q, k, v, state, decay = draw(mild, (1, 2, 70, 3))

    def run(decay, backend=backend):
        return attend(q, k, v, state, decay, backend=backend)[0].square().sum()

    by_definition = partial(run, backend="reference")
    for transform in (
        lambda f: torch.func.grad(f)(decay),
        lambda f: torch.func.jvp(torch.func.grad(f), (decay,), (decay,)),
        lambda f: torch.vmap(f)(torch.stack([decay, 2 * decay])),
    ):
        torch.testing.assert_close(transform(run), transform(by_definition))


def test_what_runs_on_a_gpu(monkeypatch):
    """PyTorch where its kernels do not take the input, never an error."""
    for name in ("cuda", "triton"):
        kernels = replace(selection.KERNELS[name], reason=lambda device: "")
        monkeypatch.setitem(selection.KERNELS, name, kernels)
    choose = partial(select_backend, "auto", "cuda", decays=True)
    assert choose(dtype=torch.bfloat16, dim=128) == choose(dtype=torch.float32, dim=64) == "cuda"
    assert choose(dtype=torch.float64, dim=64) == "triton"
    assert choose(dtype=torch.bfloat16, dim=200) == choose(dtype=torch.float64, dim=200) == "torch"
    with pytest.raises(ValueError, match="backend is 'cuda'; expected D and M of at most 128, not 200"):
        select_backend("cuda", "cuda", torch.bfloat16, 200, decays=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"log_decay": torch.zeros(3)}, r"log_decay has shape \(3,\); expected \(2,\) or \(1, 2, 5\)"),
        ({"log_decay": torch.zeros(2).half()}, "log_decay has dtype torch.float16; expected torch.float32$"),
        ({"log_decay": torch.zeros(2, device="meta")}, "log_decay is on meta; expected cpu"),
        ({"log_decay": [0.0, 0.0]}, "log_decay is of type list; expected a torch.Tensor"),
        ({"scale": "big"}, "scale is 'big'; expected a finite number, or None for 1"),
        ({"scale": INF}, "scale is inf; expected a finite number"),
        ({"layout": "nbhd"}, "layout is 'nbhd'; expected bhnd or bnhd"),
        ({"q": torch.zeros(1, 3, 5, 4)}, "q has 3 heads and k 2; expected a multiple of k's heads"),
    ],
)
def test_bad_arguments_are_named(change, message):
    x = torch.zeros(1, 2, 5, 4)
    with pytest.raises(ValueError, match=message):
        causal_linear_attention(**{"q": x, "k": x, "v": x, **change})


def definitions_of_fla(name):
    """The module by its file: the package itself needs Triton."""
    pytest.importorskip("einops", reason="needs the package einops")
    package = importlib.util.find_spec("fla")
    if package is None:
        pytest.skip("needs the package fla-core")
    path = Path(package.submodule_search_locations[0], "ops", name, "naive.py")
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("backend", BACKENDS)
def test_definitions_of_flash_linear_attention(backend):
    naive, retention = definitions_of_fla("simple_gla"), definitions_of_fla("retention")
    q, k, v, state, decay = (x.float() for x in draw(mild, (2, 3, 100, 8), 8))
    out, final = attend(q, k, v, state, decay, backend=backend)
    turned = [x.transpose(1, 2) for x in (q, k, v, decay)]
    for found in (
        naive.naive_recurrent_simple_gla(*turned, scale=1.0, initial_state=state),
        naive.naive_chunk_simple_gla(*turned, initial_state=state, output_final_state=True, scale=1.0),
    ):
        torch.testing.assert_close((out.transpose(1, 2), final), found, rtol=1e-4, atol=1e-4)
    constant = (1 - 2.0 ** (-5 - torch.arange(3.0))).log()
    out = causal_linear_attention(q, k, v, log_decay=constant, scale=8**-0.5, backend=backend)
    torch.testing.assert_close(out, retention.naive_retention(q, k, v), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("decayed", [False, True], ids=["linear", "gated"])
def test_the_operator_of_onnx(backend, decayed):
    onnx = pytest.importorskip("onnx", minversion="1.23", reason="needs the package onnx")
    evaluator = pytest.importorskip("onnx.reference", reason="needs the package onnx")
    _, k, v, state, decay = (x.float() for x in draw(mild, (2, 2, 30, 8), 8))
    q = torch.rand(2, 4, 30, 8)
    names = ["query", "key", "value", "past_state", *(["decay"] if decayed else [])]
    rule = {"update_rule": "gated" if decayed else "linear", "scale": 0.5}
    node = onnx.helper.make_node(
        "LinearAttention", names, ["output", "present_state"], q_num_heads=4, kv_num_heads=2, **rule
    )
    values = [onnx.helper.make_tensor_value_info(x, onnx.TensorProto.FLOAT, None) for x in names]
    results = [onnx.helper.make_tensor_value_info(x, onnx.TensorProto.FLOAT, None) for x in node.output]
    model = onnx.helper.make_model(
        onnx.helper.make_graph([node], "graph", values, results),
        opset_imports=[onnx.helper.make_opsetid("", 27)],
    )
    rows = [x.transpose(1, 2).flatten(2) for x in (q, k, v)] + [state] + [decay.transpose(1, 2)] * decayed
    found = evaluator.ReferenceEvaluator(model).run(
        None, {name: x.contiguous().numpy() for name, x in zip(names, rows, strict=True)}
    )
    out, final = attend(q, k, v, state, decay if decayed else None, scale=0.5, backend=backend)
    expected = out.transpose(1, 2).flatten(2), final
    torch.testing.assert_close([torch.from_numpy(x) for x in found], list(expected), rtol=1e-4, atol=1e-4)
