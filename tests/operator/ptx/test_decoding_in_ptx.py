"""nvcc's PTX of the kernels of single tokens and of RMSNorm, executed by the interpreter."""

import pytest
import torch

from causal_linear_attention import decoding, extension, operators
from tests.helpers import emulation
from tests.operator.test_decoding import norm_and_derivative, tokens

pytestmark = [
    pytest.mark.slow,
    pytest.mark.exhaustive,
    pytest.mark.skipif(not extension.loaded("cpp"), reason=extension.reason("cpp") or "loaded"),
]


def check(machines, names):
    assert set(machines) == set(names)
    for machine in machines.values():
        assert not machine.races.found and not machine.partial


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=lambda x: str(x)[6:])
@pytest.mark.parametrize("group", [1, 3])
@pytest.mark.parametrize("decays", [None, "heads", "positions"])
def test_steps_of_the_operator(interpreter, decays, group, dtype):
    """The results of the C++ kernels; of both sizes of groups one has a normaliser. A head has two blocks."""
    q, k = (torch.rand(2, 2 * x, 20).to(dtype) for x in (group, 1))
    v, state, normalize = torch.randn(2, 2, 40).to(dtype), torch.rand(2, 2, 20, 40 + (group > 1)), group > 1
    decay = None if decays is None else torch.rand((2,) if decays == "heads" else (2, 2))
    if decays == "positions":
        decay[0, 1] = 0.0
    given = (q, k, v, state, normalize)
    found, machines = interpreter.run_file(
        "step", lambda library: emulation.emulate_step(library, *given, decay)
    )
    check(machines, ["step_kernel"])
    expected = operators.step(*given, 1e-6, decay)
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x, y, rtol=4 * torch.finfo(x.dtype).eps, atol=2e-5)


@torch.no_grad()
@pytest.mark.parametrize("dim", [5, 64])
@pytest.mark.parametrize("flag", [False, True])
def test_steps(interpreter, dim, flag):
    """One-plus and softmax, or neither; two blocks a head at 64 columns; the results of the C++ kernels."""
    q, k, v, lrpe, angles = tokens(2, 3, dim)
    places, state = torch.tensor([5, 100_000]), torch.randn(2, 3, dim, dim)
    given = (q, k, v, *angles, places, state, flag)
    found, machines = interpreter.run_file("decoding", lambda library: emulation.norm_step(library, *given))
    check(machines, ["norm_step_kernel"])
    for x, y in zip(found, decoding.norm_step(*given), strict=True):
        torch.testing.assert_close(x, y, rtol=2e-5, atol=2e-5)
    places, blocks = torch.tensor([0, 6]), torch.randn(2, 2, 3, 7, dim)
    ours, theirs = [x.clone().unbind(0) for x in (blocks, blocks)]
    given = (q, k, v, *angles, lrpe.scale, places)
    found, machines = interpreter.run_file(
        "decoding", lambda library: emulation.block_step(library, *given, *ours, flag)
    )
    check(machines, ["block_step_kernel"])
    expected = decoding.block_step(*given, *theirs, flag)
    for x, y in zip((found, *ours), (expected, *theirs), strict=True):
        torch.testing.assert_close(x, y, rtol=2e-5, atol=2e-5)


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=lambda x: str(x)[6:])
def test_rms_norm(interpreter, dtype):
    x, grad = torch.randn(19, 70).to(dtype), torch.randn(19, 70).to(dtype)
    x[3] = 0.0
    found, machines = interpreter.run_file("rms_norm", lambda library: emulation.rms_norm(library, x, grad))
    check(machines, ["rms_norm_kernel", "rms_norm_backward_kernel"])
    for got, wanted in zip(found, norm_and_derivative(x, grad), strict=True):
        tolerance = 1e-2 if got.dtype != torch.float32 else 2e-5
        torch.testing.assert_close(got, wanted, rtol=tolerance, atol=2e-3)
