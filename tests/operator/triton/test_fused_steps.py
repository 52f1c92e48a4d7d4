"""The steps between matrix products on Triton: in its interpreter on the CPU, and on a GPU."""

from types import SimpleNamespace

import pytest
import torch

from causal_linear_attention import extension, fused, operators, triton_backend, triton_fused
from tests.operator import test_fused
from tests.operator.triton.test_triton import DEVICES, GPU, compiled, installed, multiply_bfloat16

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
STEPS = ("residual", "gated", "features", "blocks")
# length, batch, heads, d; block size: few, since the interpreter takes a second for a program
SIZES = [(19, 1, 2, 9, 7), (5, 2, 1, 16, 64), (1, 1, 1, 1, 4), (0, 2, 2, 4, 2)]
in_every_type = pytest.mark.parametrize("dtype", DTYPES, ids=lambda x: str(x).removeprefix("torch."))


@pytest.fixture(params=DEVICES)
def device(request, monkeypatch):
    """Where the kernels run, for calls of the steps but those in float64, which they are compared with."""
    if request.param == "cpu":
        multiply_bfloat16(monkeypatch)
        round_to_bfloat16(monkeypatch)
    elif why := triton_backend.reason(GPU):
        pytest.skip(why)
    for name in (*STEPS, *(f"{name}_backward" for name in STEPS)):
        monkeypatch.setattr(fused, name, getattr(triton_fused, name))
    monkeypatch.setattr(fused, "runs", lambda x: x.dtype in DTYPES)
    monkeypatch.setattr(test_fused, "SIZES", SIZES)
    torch.use_deterministic_algorithms(True)  # torch.empty gives NaN: every element must be written
    with torch.device(request.param):
        yield request.param
    torch.use_deterministic_algorithms(False)


def round_to_bfloat16(monkeypatch):
    """The interpreter truncates."""
    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    cast = InterpreterBuilder.cast_impl

    def rounded(self, x, kind):
        if (x.dtype.scalar, kind.scalar) != (tl.float32, tl.bfloat16):
            return cast(self, x, kind)
        bits = torch.from_numpy(x.data.copy()).to(torch.bfloat16).view(torch.uint16)
        return TensorHandle(bits.numpy(), tl.bfloat16)

    monkeypatch.setattr(InterpreterBuilder, "cast_impl", rounded)


@in_every_type
@pytest.mark.parametrize("p", [0.0, 0.3])
@pytest.mark.parametrize(("eps", "keep"), [(1e-8, True), (1e-8, False), (None, True)])
def test_residual_and_norm(device, dtype, p, eps, keep):
    test_fused.test_residual_and_norm(None, dtype, p, eps, keep)


@in_every_type
def test_gated_unit(device, dtype):
    test_fused.test_gated_unit(None, dtype)


@pytest.mark.parametrize(
    ("dtype", "feature_map"),
    [*((torch.float32, x) for x in fused.MAPS), (torch.bfloat16, "elu"), (torch.float16, "1+elu")],
    ids=str,
)
def test_features(device, dtype, feature_map):
    test_fused.test_features(None, dtype, feature_map)


@pytest.mark.parametrize(
    ("dtype", "causal", "softmax"),
    [
        *((torch.float32, True, False), (torch.float32, False, True)),
        *((torch.bfloat16, True, True), (torch.float16, False, False)),
    ],
    ids=str,
)
def test_blocks(device, dtype, causal, softmax):
    test_fused.test_blocks(None, dtype, causal, softmax)


@installed
def test_kernels_compile_for_gpus_that_are_not_there(root, tmp_path):
    """And another batch or length runs the same code."""
    *kernels, changed = compiled(root, tmp_path, "80:bfloat16:4:64:64", module="steps_compiled")
    assert len(kernels) == 10 and changed == []
    for found in kernels:
        spilled = 512 if "blocks" in found["kernel"] else 32
        assert found["stack"] <= spilled and found["shared"] <= 99 * 1024, found


def test_a_gpu_without_cuda_kernels_has_the_steps_on_triton(monkeypatch):
    x = SimpleNamespace(device=GPU, dtype=torch.bfloat16, is_cuda=True, is_cpu=False)
    monkeypatch.setattr(extension, "_libraries", {})
    monkeypatch.setattr(extension, "_reasons", {"cuda": "the CUDA kernels were not built"})
    reasons = [""]
    monkeypatch.setattr(triton_backend, "reason", lambda device: reasons[0])
    assert fused.runs(x) and fused.runs_blocks(x, 64, 64) and not fused.runs_blocks(x, 64, 65)
    x.dtype = torch.float64
    assert not fused.runs(x)
    x.dtype, reasons[0] = torch.float16, "the package triton is not installed"
    assert not fused.runs(x)


@pytest.mark.skipif(extension.loaded("cuda"), reason="the CUDA kernels are there")
def test_operators_are_registered_for_gpus():
    for name in (*STEPS, *(f"{name}_backward" for name in STEPS)):
        name = f"{operators.NAMESPACE}::{name}"
        assert torch._C._dispatch_has_kernel_for_dispatch_key(name, "CUDA")
