"""The Triton kernels against the definition: through Triton's interpreter on the CPU, and on a GPU."""

import dataclasses
import importlib.util
import json
import os
import subprocess
import sys
from functools import partial

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from causal_linear_attention import (
    causal_linear_attention,
    operators,
    select_backend,
    selection,
    triton_backend,
)
from tests.helpers.cases import case
from tests.helpers.definition import draw, run
from tests.operator import test_decays, test_packed
from tests.operator.test_kernels import (
    DTYPES,
    check,
    check_gradient_not_finite,
    check_not_finite,
    kernel,
)

INSTALLED = importlib.util.find_spec("triton") is not None
INTERPRETED = INSTALLED and os.environ.get("TRITON_INTERPRET") == "1"
GPU = torch.device("cuda", 0)
SHAPES = [(1, 2, 37, 5, 7), (1, 1, 20, 24, 65), (2, 1, 1, 1, 1), (1, 1, 9, 128, 17), (1, 2, 0, 3, 4)]
SHAPES += [(0, 2, 10, 3, 4)]
installed = pytest.mark.skipif(not INSTALLED, reason="without a GPU scripts/test_triton.sh runs this")
interpreted = pytest.mark.skipif(not INTERPRETED, reason="without a GPU scripts/test_triton.sh runs this")
no_gpu = pytest.mark.skipif(not torch.cuda.is_available() or INTERPRETED, reason="no GPU")
DEVICES = [pytest.param("cpu", marks=interpreted), pytest.param("cuda", marks=[pytest.mark.cuda, no_gpu])]


@pytest.fixture(params=DEVICES)
def device(request, monkeypatch):
    """Where the kernels run; the tests are asked for "triton" there."""
    if request.param == "cpu":
        interpreted = dataclasses.replace(selection.KERNELS["triton"], home="cpu", reason=lambda device: "")
        monkeypatch.setitem(selection.KERNELS, "triton", interpreted)
        multiply_bfloat16(monkeypatch)
    elif why := triton_backend.reason(GPU):
        pytest.skip(why)
    torch.use_deterministic_algorithms(True)  # torch.empty gives NaN: every element must be written
    yield request.param
    torch.use_deterministic_algorithms(False)


def multiply_bfloat16(monkeypatch):
    """The interpreter keeps bfloat16 as integers, and multiplies those in tl.dot."""
    import numpy as np
    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    def widened(x):
        if x.dtype.scalar != tl.bfloat16:
            return x
        return TensorHandle((x.data.astype(np.uint32) << 16).view(np.float32), tl.float32)

    dot = InterpreterBuilder.create_dot
    monkeypatch.setattr(
        InterpreterBuilder, "create_dot", lambda self, a, b, *rest: dot(self, widened(a), widened(b), *rest)
    )


def cut_into_segments(monkeypatch, multiprocessors=6):
    monkeypatch.setattr(triton_backend, "_multiprocessors", lambda device: multiprocessors)
    monkeypatch.setattr(triton_backend, "_SHORTEST_SEGMENT", 16)


@pytest.mark.parametrize("normalize", [False, True], ids=["plain", "normalize"])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda x: str(x).removeprefix("torch."))
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "B{}-H{}-N{}-D{}-M{}".format(*s))
def test_shapes(device, shape, dtype, normalize):
    check("triton", shape, dtype, normalize, device=device)


@pytest.mark.parametrize("normalize", [False, True], ids=["plain", "normalize"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=["float64", "bfloat16"])
@pytest.mark.parametrize("state", [False, True], ids=["zero", "state"])
def test_segments(device, monkeypatch, state, dtype, normalize):
    cut_into_segments(monkeypatch)
    shape = (1, 2, 37, 5, 18)
    assert triton_backend._Launches(*draw(shape, dtype, normalize)[:3], normalize).segments[0] > 1
    check("triton", shape, dtype, normalize, state=state, device=device)


@pytest.mark.parametrize("cut", [False, True], ids=["whole", "cut"])
@pytest.mark.parametrize("normalize", [False, True], ids=["plain", "normalize"])
@pytest.mark.parametrize("state", [False, True], ids=["zero", "state"])
def test_packed_sequences(device, monkeypatch, state, normalize, cut):
    if cut:
        cut_into_segments(monkeypatch, 25)
    lengths = [0, 37, 1, 0, 16, 60]
    *tensors, cu_seqlens = test_packed.draw(lengths, dim=5, width=18, normalize=normalize, state=state)
    *tensors, cu_seqlens = (None if x is None else x.to(device) for x in (*tensors, cu_seqlens))
    launches = triton_backend._Launches(*tensors[:3], normalize, cu_seqlens=cu_seqlens)
    assert (launches.segments[0] > 1) == cut
    options = {"normalize": normalize, "cu_seqlens": cu_seqlens}
    found, expected = (
        test_packed.everything(partial(test_packed.attend, backend=name, **options), *tensors)
        for name in ("triton", "reference")
    )
    torch.testing.assert_close(found, expected)


def test_packed_sequences_without_their_last_states(device):
    q, k, v, _, cu_seqlens = (
        None if x is None else x.to(device) for x in test_packed.draw([5, 20], state=False)
    )
    arguments = (q, k, v, None, True, 1e-6, cu_seqlens, False)
    assert set(torch.library.opcheck(operators.triton_forward, arguments).values()) == {"SUCCESS"}
    out, final, inverse = operators.triton_forward(*arguments)
    assert len(final) == 0
    arguments = (v, None, q, k, v, None, inverse, True, 1e-6, out, cu_seqlens)
    assert set(torch.library.opcheck(operators.triton_backward, arguments).values()) == {"SUCCESS"}
    expected = causal_linear_attention(q, k, v, normalize=True, cu_seqlens=cu_seqlens, backend="reference")
    torch.testing.assert_close(out, expected)


@pytest.mark.parametrize("cut", [False, True], ids=["whole", "cut"])
@pytest.mark.parametrize("packed", [False, True], ids=["rows", "packed"])
def test_decays_and_their_gradients(device, monkeypatch, packed, cut):
    """Also where the sum of log_decay's gradient begins again, and in several blocks of columns."""
    monkeypatch.setattr(triton_backend, "_KEPT_ROWS", 16)
    if cut:
        cut_into_segments(monkeypatch, 20)
    cu_seqlens = torch.tensor([0, 37, 37, 48, 49], device=device) if packed else None
    for decays, normalize in ((test_decays.of_heads, False), (test_decays.wild, True)):
        with case(decays.__name__):
            given = test_decays.draw(decays, (1, 2, 49, 18), 5, normalize, 4 if packed else None)
            given = [x.to(device) for x in given]
            options = {"normalize": normalize, "cu_seqlens": cu_seqlens}
            found, expected = (
                test_decays.everything(partial(test_decays.attend, backend=backend, **options), *given)
                for backend in ("triton", "reference")
            )
            torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("cut", [False, True], ids=["whole", "cut"])
@pytest.mark.parametrize("packed", [False, True], ids=["rows", "packed"])
def test_heads_that_share_keys_and_a_scale(device, monkeypatch, packed, cut):
    if cut:
        cut_into_segments(monkeypatch, 40)
    cu_seqlens = torch.tensor([0, 37, 37, 49], device=device) if packed else None
    batch, sequences = (1, 3) if packed else (2, None)
    q = torch.rand(batch, 6, 49, 18, dtype=torch.float64)
    for decays, normalize in ((test_decays.of_heads, False), (test_decays.wild, True), (None, True)):
        with case(str(decays)):
            _, *given = test_decays.draw(
                decays or test_decays.mild, (batch, 2, 49, 18), 5, normalize, sequences
            )
            dtype = torch.float32 if decays is test_decays.of_heads else torch.float64
            given = [x.to(device, dtype) for x in (q, *given)]

            def attend(*given, backend, normalize=normalize, decays=decays):
                options = {"normalize": normalize, "cu_seqlens": cu_seqlens, "scale": 0.5}
                decay = given[4] if decays else given[4] * 0
                return test_decays.attend(*given[:4], decay, backend=backend, **options)

            found, expected = (
                test_decays.everything(partial(attend, backend=name), *given)
                for name in ("triton", "reference")
            )
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("normalize", [False, True], ids=["plain", "normalize"])
@pytest.mark.parametrize("dtype", DTYPES[1:], ids=lambda x: str(x).removeprefix("torch."))
def test_decays_in_every_type(device, monkeypatch, dtype, normalize):
    monkeypatch.setattr(triton_backend, "_KEPT_ROWS", 32)
    decay = test_decays.mild((1, 2, 70))
    decay[..., 50] = -test_decays.INF
    check("triton", (1, 2, 70, 9, 17), dtype, normalize, device=device, log_decay=decay)


def test_what_a_decay_hides_is_not_seen(device):
    with torch.device(device):
        test_decays.test_what_a_decay_hides_is_not_seen("triton")
        *given, decay = test_decays.draw(test_decays.mild, (1, 1, 40, 4))
        decay[..., 20] = -test_decays.INF
        clean = test_decays.everything(partial(test_decays.attend, backend="triton"), *given, decay)
        given[2][:, :, 10] = torch.nan
        found = test_decays.everything(partial(test_decays.attend, backend="triton"), *given, decay)
        for x, y in zip(found, clean, strict=True):
            rows = slice(None) if x.shape[2] != 40 else slice(20, None)
            if x.shape != given[3].shape or x is found[1]:  # the initial state's gradient has seen it
                torch.testing.assert_close(x[:, :, rows], y[:, :, rows])


def test_opcheck_with_decays(device):
    given = test_decays.draw(test_decays.of_heads, (1, 2, 9, 4), normalize=True)
    q, k, v, state, decay = (x.to(device) for x in given)
    arguments = (q, k, v, state, True, 1e-6, None, True, decay.exp())
    assert set(torch.library.opcheck(operators.triton_forward, arguments).values()) == {"SUCCESS"}
    out, final, inverse = operators.triton_forward(*arguments)
    arguments = (v, final, q, k, v, state, inverse, True, 1e-6, out, None, decay.exp())
    assert set(torch.library.opcheck(operators.triton_backward, arguments).values()) == {"SUCCESS"}


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda x: str(x).removeprefix("torch."))
def test_steps(device, dtype):
    def step(q, k, v, state, log_decay, normalize, scale):
        decay = None if log_decay is None else log_decay.exp()
        return operators.triton_step(q, k, v, state, normalize, 1e-6, decay, scale)

    test_decays.compare_steps(step, dtype, device)


def test_opcheck_of_a_step(device):
    q, k, v, state, *_ = (x.to(device) for x in draw((2, 2, 1, 4, 3), torch.float32, True))
    for decay in (None, torch.rand(2, device=device)):
        arguments = (q[:, :, 0], k[:, :, 0], v[:, :, 0], state, True, 1e-6, decay)
        assert set(torch.library.opcheck(operators.triton_step, arguments).values()) == {"SUCCESS"}


@pytest.mark.parametrize("strides", ["projected", "sliced", "columns"])
def test_strides(device, strides):
    check("triton", (2, 3, 20, 6, 9), torch.float32, True, strides, device=device)


@pytest.mark.parametrize("normalize", [False, True], ids=["plain", "normalize"])
def test_derivatives_of_both_orders(device, normalize):
    q, k, v, state, *_ = draw((1, 1, 6, 3, 2), torch.float64, normalize)
    tensors = [x.to(device).requires_grad_() for x in (q, k, v, state)]

    def attend(*tensors):
        return kernel("triton", normalize)(*tensors)

    assert gradcheck(attend, tensors, fast_mode=True)
    assert gradgradcheck(attend, tensors, fast_mode=True)


@pytest.mark.parametrize("value", [float("nan"), float("inf")], ids=["nan", "inf"])
@pytest.mark.parametrize("which", [0, 1, 2], ids="qkv")
def test_nan_and_inf_stay_where_they_belong(device, which, value):
    check_not_finite("triton", which, value, False, device, shape=(1, 2, 60, 5, 6), at=41)


@pytest.mark.parametrize("which", [0, 1, 2], ids="qkv")
def test_nan_in_the_output_gradient_stays_causal(device, which):
    check_gradient_not_finite("triton", which, device, 50)


def test_opcheck(device):
    q, k, v, state, grad, grad_state = (x.to(device) for x in draw((1, 2, 9, 4, 3), torch.float32, True))
    arguments = (q, k, v, state, True, 1e-6)
    assert set(torch.library.opcheck(operators.triton_forward, arguments).values()) == {"SUCCESS"}
    out, _, inverse = operators.triton_forward(*arguments)
    arguments = (grad, grad_state, q, k, v, state, inverse, True, 1e-6, out)
    assert set(torch.library.opcheck(operators.triton_backward, arguments).values()) == {"SUCCESS"}


def test_large_states_of_float16_do_not_overflow(device):
    shape = (1, 1, 40, 16, 16)
    q, k, v, state, *_ = draw(shape, torch.float16, True)
    found = kernel("triton", True)(*(x.to(device) for x in (q, k, v, state * 1e6)))[0]
    expected = kernel("torch", True)(q, k, v, state * 1e6)[0]
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-2, atol=1e-3)


def test_wider_heads_are_refused(device):
    x = torch.zeros(1, 1, 2, 129, device=device)
    with pytest.raises(ValueError, match="backend is 'triton'; expected D and M of at most 128, not 129"):
        causal_linear_attention(x, x, x, backend="triton")


@pytest.mark.cuda
@no_gpu
@pytest.mark.parametrize("shape", [(2, 3, 700, 64, 64), (1, 1, 5000, 128, 48), (4, 40, 300, 128, 128)])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda x: str(x).removeprefix("torch."))
def test_the_same_inputs_give_the_same_bits(shape, dtype):
    given = [x.cuda() for x in draw(shape, dtype, True)]
    check("triton", shape, dtype, True, device="cuda")
    for x, y in zip(*(run(kernel("triton", True), *given) for _ in range(2)), strict=True):
        assert torch.equal(x, y)


def compiled(root, tmp_path, *cases, module="triton_compiled"):
    """The output of this module of tests/helpers."""
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path)}
    environment.pop("TRITON_INTERPRET", None)
    command = [sys.executable, "-m", f"tests.helpers.{module}", *cases]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=root)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@installed
def test_kernels_compile_for_gpus_that_are_not_there(root, tmp_path):
    """The interpreter accepts more than a GPU: types, small products, too much shared memory."""
    case = "80:bfloat16:1:17:1"
    kernels = compiled(root, tmp_path, case, f"{case}:packed", f"{case}:decayed")
    assert len(kernels) == 21
    for found in kernels:
        spilled = 128 if "decayed" in found["case"] else 0
        assert found["stack"] <= spilled and found["shared"] <= 99 * 1024, found


@installed
def test_another_batch_or_length_runs_the_same_code(root, tmp_path):
    assert compiled(root, tmp_path, "variants") == [[]]


def test_auto_falls_back_to_triton(monkeypatch):
    reasons = dict.fromkeys(("cuda", "triton"), "")
    for name in reasons:
        kernels = dataclasses.replace(selection.KERNELS[name], reason=lambda device, name=name: reasons[name])
        monkeypatch.setitem(selection.KERNELS, name, kernels)
    assert select_backend("auto", GPU) == "cuda"
    assert select_backend("auto", GPU, torch.float64) == "triton"
    assert select_backend("auto", GPU, dim=129) == "torch"
    reasons["cuda"] = "the CUDA kernels were not built"
    assert select_backend("auto", GPU) == "triton"
    reasons["triton"] = "the package triton is not installed"
    assert select_backend("auto", GPU) == "torch"


def pretend(monkeypatch, version, capability):
    """A version of Triton, and a GPU of this compute capability."""
    monkeypatch.setattr(triton_backend, "version", lambda: version)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)


@pytest.mark.parametrize(
    ("version", "capability", "reason"),
    [
        ("", (9, 0), "the package triton is not installed"),
        ("3.5.1", (9, 0), "triton 3.5.1 is older than 3.6"),
        ("3.6.0", (7, 5), "triton needs compute capability 8.0, not 7.5"),
        ("3.10.0+git1", (8, 0), ""),
    ],
)
def test_reasons(monkeypatch, version, capability, reason):
    pretend(monkeypatch, version, capability)
    monkeypatch.setattr(triton_backend, "_trial", lambda device: "")
    assert triton_backend._reason.__wrapped__(GPU) == reason


def test_reason_without_a_gpu(monkeypatch):
    monkeypatch.setattr(triton_backend, "version", lambda: "3.9.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "finds no NVIDIA GPU" in triton_backend._reason.__wrapped__(GPU)


@pytest.mark.parametrize(("heads", "segments"), [(1, 8), (64, 4), (100, 2), (131, 2), (132, 1), (500, 1)])
def test_segments_fit_the_multiprocessors_at_once(monkeypatch, heads, segments):
    monkeypatch.setattr(triton_backend, "_multiprocessors", lambda device: 132)
    q = torch.empty(1, heads, 4096, 1, dtype=torch.bfloat16)
    number, length = triton_backend._Launches(q, q, q, False).segments
    assert number == segments and number * length >= 4096
    assert heads >= 132 or heads * number <= 2 * 132


def test_what_a_graph_capture_forbids_is_not_remembered(monkeypatch):
    device, capturing = torch.device("cuda", 5), [True]
    pretend(monkeypatch, "3.9.0", (9, 0))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing[0])
    monkeypatch.setattr(triton_backend, "_kernels", lambda: pytest.fail("launched in a capture"))
    assert "before this CUDA graph" in triton_backend.reason(device)
    monkeypatch.setattr(triton_backend, "_trial", lambda device: "")
    assert triton_backend.reason(device) == ""
    triton_backend._reason.cache_clear()


@interpreted
def test_operands_are_rounded_to_the_nearest_tf32():
    from tests.helpers.triton_rounding import rounded

    given = torch.randn(64) * 2.0 ** torch.arange(-32, 32)
    ulp = 2.0**-10
    given[:6] = torch.tensor([float("inf"), float("-inf"), float("nan"), 1 + ulp / 2, 1 + 1.5 * ulp, 0.0])
    found = torch.empty_like(given)
    rounded[1,](given, found, SIZE=64, PRECISION="tf32")
    mantissa, exponent = torch.frexp(given.double())
    expected = torch.ldexp((mantissa * 2048).round() / 2048, exponent)  # ties to even, as round is
    expected = torch.where(given.isfinite(), expected, given.double())
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=0, equal_nan=True)
    rounded[1,](given, found, SIZE=64, PRECISION="ieee")
    torch.testing.assert_close(found, given, rtol=0, atol=0, equal_nan=True)


@interpreted
def test_a_trial_finds_what_would_fail_later(monkeypatch):
    cpu = torch.device("cpu")
    assert triton_backend._trial(cpu) == ""

    def fail_with(message):
        def kernels():
            raise RuntimeError(message)

        monkeypatch.setattr(triton_backend, "_kernels", kernels)

    fail_with("Failed to find C compiler.\nPlease specify via CC.")
    assert triton_backend._trial(cpu).endswith("cannot run a kernel (Failed to find C compiler.)")
    fail_with("CUDA out of memory.")  # a later call may succeed
    with pytest.raises(RuntimeError, match="out of memory"):
        triton_backend._trial(cpu)
