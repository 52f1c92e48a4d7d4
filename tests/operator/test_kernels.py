"""The compiled kernels, and PyTorch in their place, against the definition in float64: values, gradients,
threads, instruction sets."""

from itertools import product

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from causal_linear_attention import (
    causal_linear_attention,
    causal_linear_attention_step,
    chunked,
    extension,
)
from causal_linear_attention.chunked import CHUNK, SEGMENT
from tests.helpers.cases import case
from tests.helpers.counting import Dispatched
from tests.helpers.definition import definition, draw, run

cpp = pytest.mark.skipif(not extension.loaded("cpp"), reason=extension.reason("cpp") or "loaded")
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
SHAPES = [
    *[(2, 3, 70, 64, 64), (1, 1, 700, 64, 64), (1, 1, 1500, 16, 48), (2, 2, 33, 5, 7)],
    *[(1, 2, 300, 130, 70), (1, 1, 1, 1, 1), (2, 1, 31, 64, 1), (3, 2, 64, 33, 128), (1, 2, 0, 3, 4)],
    *[(0, 2, 10, 3, 4), (1, 2, 2, 4, 3)],
    *[(1, 2, CHUNK - 1, 4, 3), (1, 2, CHUNK + 1, 4, 3), (1, 2, SEGMENT, 4, 3), (1, 2, SEGMENT + 70, 4, 3)],
]
CPU = [pytest.param("cpp", marks=cpp), "torch"]
KINDS = [*CPU, pytest.param("cuda", marks=pytest.mark.cuda)]


@pytest.fixture(autouse=True)
def nan_in_new_tensors():
    """torch.empty gives NaN, so that an element no kernel writes fails a comparison."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(autouse=True)
def several_segments(monkeypatch):
    """Of one head, and of several sequences and heads."""
    monkeypatch.setattr(chunked, "SPAN", 4 * CHUNK)


@pytest.fixture(autouse=True)
def threads_restored():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
    if extension.loaded("cpp"):
        extension.choose_instruction_set("")


def device_of(backend):
    if backend == "cuda" and not (torch.cuda.is_available() and extension.loaded("cuda")):
        pytest.skip(extension.reason("cuda") or "no GPU")
    return "cuda" if backend == "cuda" else "cpu"


def kernel(backend, normalize):
    def function(q, k, v, state, log_decay=None):
        options = {"normalize": normalize, "return_state": True, "backend": backend}
        return causal_linear_attention(q, k, v, log_decay=log_decay, initial_state=state, **options)

    return function


def norm(x):
    return float(x.double().norm())


def check(backend, shape, dtype, normalize, strides="dense", state=True, device=None, log_decay=None):
    """The kernel's error is at most twice the plain formula's in the same dtype."""
    device = device or device_of(backend)
    given = draw(shape, dtype, normalize, state, strides)
    truth = definition(*[None if x is None else x.double() for x in given], normalize, log_decay)
    plain = definition(*given, normalize, log_decay)
    of_sums = None if log_decay is None else log_decay.to(given[5].dtype)
    moved = [None if x is None else x.to(device) for x in (*given, of_sums)]
    found = run(kernel(backend, normalize), *moved)
    rounding = 1e-14 if dtype == torch.float64 else 4 * torch.finfo(dtype).eps
    # With one feature or position the normalised output hardly depends on q and k; what is left of
    # their gradients is rounding, so it is measured against the size of what cancelled.
    # A GPU's division in float64 is a few dozen roundings off.
    cancelled = 2 * rounding if device == "cuda" else 8 * torch.finfo(dtype).eps
    floor = norm(given[4]) * cancelled + 1e-30
    names = ["out", "state", "grad_q", "grad_k", "grad_v", "grad_state", "grad_log_decay"]
    for name, t, p, f in zip(names, truth, plain, found, strict=False):
        sums = name in ("state", "grad_log_decay")
        assert f.shape == t.shape and f.dtype == (given[5] if sums else p).dtype, name
        error, allowed = norm(f.cpu().double() - t), 2 * norm(p.double() - t)
        if name == "state" and backend == "cpp":  # in float32 from exact products
            assert error <= 1e-5 * norm(t), f"{name}: {error}"
        state_only = name == "state" and dtype != torch.float64
        relative = 4 * torch.finfo(torch.float32).eps if state_only else rounding
        assert error <= allowed + max(relative * norm(t), floor), f"{name}: {error} > {allowed}"


@pytest.mark.parametrize("backend", KINDS)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "B{}-H{}-N{}-D{}-M{}".format(*s))
def test_shapes(backend, shape):
    """The CUDA kernels have no float64, and no float32 beyond 128 columns."""
    dtypes = DTYPES if backend != "cuda" else DTYPES[1 if max(shape[3:]) <= 128 else 2 :]
    for dtype, normalize in product(dtypes, (False, True)):
        with case(dtype, f"{normalize=}"):
            check(backend, shape, dtype, normalize)


@pytest.mark.parametrize("backend", CPU)
def test_states_that_enter_a_chunk_have_more_than_16_bits(backend):
    """The sum of a chunk is 2,049, between two numbers of float16; the next value takes 2,048 of it away."""
    ones = torch.ones(1, 1, 2 * CHUNK, 1, dtype=torch.float16)
    q, k, v = (ones.clone().requires_grad_() for _ in range(3))
    v.data[0, 0, :, 0] = torch.tensor([33.0, *[32.0] * (CHUNK - 1), -2048.0, *[0.0] * (CHUNK - 1)])
    out = causal_linear_attention(q, k, v, backend=backend)
    assert out[0, 0, CHUNK:, 0].tolist() == [1.0] * CHUNK
    out.backward(v.data.flip(2))  # v's gradient sums it from behind
    assert v.grad[0, 0, :CHUNK, 0].tolist() == [1.0] * CHUNK


@pytest.mark.parametrize("backend", CPU)
@settings(
    max_examples=120,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    batch=st.integers(0, 2),
    heads=st.integers(1, 3),
    length=st.integers(0, 300),
    dim=st.integers(1, 130),
    width=st.integers(1, 130),
    dtype=st.sampled_from(DTYPES),
    normalize=st.booleans(),
    state=st.booleans(),
    strides=st.sampled_from(["dense", "projected", "sliced", "columns"]),
    isa=st.sampled_from(extension.available_instruction_sets() or [""]),
)
def test_random(backend, batch, heads, length, dim, width, dtype, normalize, state, strides, isa):
    if backend == "cpp":
        extension.choose_instruction_set(isa)
    check(backend, (batch, heads, length, dim, width), dtype, normalize, strides, state)


@cpp
@pytest.mark.parametrize("isa", extension.available_instruction_sets())
@pytest.mark.parametrize("normalize", [False, True], ids=["plain", "normalize"])
def test_every_instruction_set(isa, normalize):
    extension.choose_instruction_set(isa)
    assert extension.instruction_set() == isa
    for dtype in DTYPES:
        check("cpp", (2, 2, 150, 40, 72), dtype, normalize)


def results_with(threads, given, normalize):
    torch.set_num_threads(threads)
    return run(kernel("cpp", normalize), *given)


@cpp
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda x: str(x).removeprefix("torch."))
@pytest.mark.parametrize("normalize", [False, True], ids=["plain", "normalize"])
@pytest.mark.parametrize("heads", [2, 7])
def test_threads_up_to_the_number_of_heads_change_no_bit(heads, normalize, dtype):
    given = draw((1, heads, 1100, 24, 40), dtype, normalize)
    first = results_with(1, given, normalize)
    for threads in (t for t in (2, 3, 7) if t <= heads):
        for x, y in zip(first, results_with(threads, given, normalize), strict=True):
            assert torch.equal(x, y)


@cpp
@pytest.mark.parametrize("heads, threads", [(1, 2), (1, 3), (2, 3), (2, 7), (1, 64)])
def test_more_threads_than_heads(heads, threads):
    """Each dtype with and without the normaliser, by turns."""
    shape = (1, heads, 1100, 24, 40)
    for turn, dtype in enumerate(DTYPES, start=threads):
        normalize = turn % 2 == 0
        with case(dtype, f"{normalize=}"):
            given = draw(shape, dtype, normalize)
            first = results_with(threads, given, normalize)
            for x, y in zip(first, results_with(threads, given, normalize), strict=True):
                assert torch.equal(x, y), "the same number of threads gives other bits the second time"
            check("cpp", shape, dtype, normalize)


def check_not_finite(backend, which, value, normalize, device, shape, at, **tolerance):
    """`value` in row `at` of a head's q, k or v reaches what it must, and no other head or earlier row."""
    given = [x.to(device) for x in draw(shape, torch.float32, normalize)[:4]]
    clean = kernel(backend, normalize)(*given)[0]
    given[which][0, 1, at, 3] = value
    dirty = kernel(backend, normalize)(*given)[0]
    torch.testing.assert_close(dirty[0, 0], clean[0, 0], **tolerance)
    torch.testing.assert_close(dirty[0, 1, :at], clean[0, 1, :at], **tolerance)
    bad = ~dirty[0, 1, at:].isfinite()
    if which == 0:
        assert bad[0].all() and not bad[1:].any()
    elif which == 1:
        assert normalize or bad.all()
    else:
        assert bad[:, 3].all() and not bad[:, :3].any() and not bad[:, 4:].any()


@pytest.mark.parametrize("backend", KINDS)
@pytest.mark.parametrize("which", [0, 1, 2], ids="qkv")
def test_nan_and_inf_stay_where_they_belong(backend, which):
    device = device_of(backend)
    for value, normalize in product((float("nan"), float("inf"), -float("inf")), (False, True)):
        with case(value, f"{normalize=}"):
            given = (backend, which, value, normalize, device)
            check_not_finite(*given, shape=(1, 2, 200, 20, 24), at=100, rtol=0, atol=0)


def check_gradient_not_finite(backend, which, device, length):
    """A NaN in a row of the output's gradient reaches that row of q's, and no later row of k's and v's."""
    at = length // 2
    q, k, v, *_ = (x.to(device).requires_grad_() for x in draw((1, 2, length, 8, 8), torch.float32, False))
    weights = torch.ones(1, 2, length, 8, device=device)
    weights[0, 0, at] = float("nan")
    grad = torch.autograd.grad(causal_linear_attention(q, k, v, backend=backend), (q, k, v), weights)[which]
    assert grad[0, 1].isfinite().all()
    assert grad[0, 0, at + 1 :].isfinite().all(), "the gradient of a later row depends on an earlier output"
    assert grad[0, 0, :at].isfinite().all() == (which == 0)


@cpp
@pytest.mark.parametrize("which", [0, 1, 2], ids="qkv")
def test_nan_in_the_output_gradient_stays_causal(which):
    check_gradient_not_finite("cpp", which, "cpu", 120)


@pytest.mark.parametrize("backend", CPU)
@pytest.mark.parametrize("width", [1, 24, 255, 256, 300, 600])
def test_step(backend, width):
    """The compiled one, and PyTorch's, which runs where gradients are wanted."""
    for dtype, normalize in product(DTYPES, (False, True)):
        with case(dtype, f"{normalize=}"):
            check_step(backend, dtype, normalize, width)


def check_step(backend, dtype, normalize, width):
    q, k, v, state, *_ = draw((2, 3, 4, 12, width), dtype, normalize)
    whole, final = kernel(backend, normalize)(*(x.to(state.dtype) for x in (q, k, v)), state)
    q.requires_grad_(backend == "torch")
    for i in range(4):
        before = state.clone()
        out, new = causal_linear_attention_step(
            q[:, :, i], k[:, :, i], v[:, :, i], state, normalize=normalize
        )
        assert torch.equal(state, before), "the state given must not be modified"
        state = new
        tolerance = {"rtol": 4 * torch.finfo(dtype).eps, "atol": 5e-2 * torch.finfo(dtype).eps ** 0.5}
        torch.testing.assert_close(out, whole[:, :, i].to(dtype), **tolerance)
    torch.testing.assert_close(state, final)


@cpp
@pytest.mark.parametrize(("backend", "runs"), [("auto", 1), ("cpp", 1), ("torch", 0), ("reference", 0)])
def test_step_runs_on_the_backend_given(backend, runs):
    q, k, v, state, *_ = draw((2, 3, 1, 4, 5), torch.float32, False)
    with Dispatched() as counted:
        out, _ = causal_linear_attention_step(q[:, :, 0], k[:, :, 0], v[:, :, 0], state, backend=backend)
    assert counted.calls["causal_linear_attention.step.default"] == runs
    torch.testing.assert_close(out, (q[:, :, 0, None] @ (state + k.mT @ v)).squeeze(2))


@cpp
def test_step_names_bad_arguments_like_the_rest():
    q = torch.zeros(1, 2, 4)
    with pytest.raises(ValueError, match=r"state has shape \(1, 2, 5, 4\); expected \(1, 2, 4, 4\)"):
        causal_linear_attention_step(q, q, q, torch.zeros(1, 2, 5, 4))
    with pytest.raises(ValueError, match="k has a shape that does not fit q"):
        causal_linear_attention_step(q, torch.zeros(1, 2, 5), q, torch.zeros(1, 2, 4, 4))
    with pytest.raises(ValueError, match=r"state has dtype torch.float64; expected torch.float32"):
        causal_linear_attention_step(q, q, q, torch.zeros(1, 2, 4, 4).double())
    with torch.autocast("cpu", torch.bfloat16):
        for x in (q, q.bfloat16()):  # which the compiled step refuses at once
            with pytest.raises(ValueError, match="backend is 'gpu'; expected one of auto, "):
                causal_linear_attention_step(q, x, q, torch.zeros(1, 2, 4, 4), backend="gpu")


@cpp
def test_memory_is_the_outputs():
    """Above the inputs: out and three gradients, and nothing else that grows with the length."""
    from torch.profiler import ProfilerActivity, profile

    q, k, v = (torch.randn(1, 4, 4096, 64, requires_grad=True) for _ in range(3))
    grad = torch.randn(1, 4, 4096, 64)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as trace:
        out = causal_linear_attention(q, k, v, backend="cpp")
        torch.autograd.grad(out, (q, k, v), grad)
    allocated = sum(max(0, event.self_cpu_memory_usage) for event in trace.events())
    assert allocated <= 4.1 * grad.numel() * 4


@cpp
def test_outputs_larger_than_the_caches_have_the_same_bits():
    """Stores that pass the caches by: 32 MiB against 32 heads of 1 MiB each.

    With one thread: a head by itself is cut for more.
    """
    torch.set_num_threads(1)
    tensors = [torch.rand(1, 32, 16384, 16) for _ in range(4)]

    def everything(q, k, v, grad):
        q, k, v = (x.requires_grad_() for x in (q, k, v))
        out = causal_linear_attention(q, k, v, backend="cpp")
        return [out.detach(), *torch.autograd.grad(out, (q, k, v), grad)]

    together = everything(*tensors)
    for head in range(0, 32, 5):
        alone = everything(*(x.detach()[:, head : head + 1] for x in tensors))
        for x, y in zip(together, alone, strict=True):
            assert torch.equal(x[:, head : head + 1], y)


@cpp
def test_no_memory_for_the_results_is_said_as_torch_says_it():
    """fairseq's trainer looks for these words, and so do the benchmarks."""
    words = "can't allocate memory|out of memory"
    q = torch.ones(1).expand(1, 1, 2**52, 1)
    with pytest.raises(RuntimeError, match=words):
        causal_linear_attention(q, q, q, backend="cpp")
    with pytest.raises(RuntimeError, match=words):
        causal_linear_attention_step(q[0], q[0], q[0], q.transpose(1, 2))
