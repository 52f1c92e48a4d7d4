"""Very large positions, and derivatives that are written by hand."""

import copy

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.func import functional_call

from causal_linear_attention import extension
from tests.helpers.counting import Dispatched
from tests.helpers.lm import build_lm, tokens
from user_dir.attention.parts.features import elu, one_plus_elu
from user_dir.modules import GLU, LRPE, RMSNorm, SinusoidalPositions
from user_dir.modules.linear_maps import JoinsMaps
from user_dir.modules.lrpe import turn
from user_dir.modules.norms import ScaleNorm
from user_dir.modules.padding import padding_back, padding_last


@pytest.mark.parametrize("dim", [3, 64])
def test_lrpe_is_exact_at_any_position(dim):
    module, x = LRPE(dim), torch.randn(4, dim)
    positions = torch.tensor([0, 1000, 99_999, 100_000])
    expected = copy.deepcopy(module).double()(x.double(), positions)
    torch.testing.assert_close(module(x, positions), expected.float(), atol=2e-6, rtol=0)


@pytest.mark.parametrize("dim", [1, 3, 8])
def test_derivatives_of_lrpe(dim):
    module = LRPE(dim, scale=0.7).double()
    x = torch.randn(2, 3, 5, dim, dtype=torch.float64, requires_grad=True)
    positions = torch.tensor([0, 3, 4, 70, 1000])

    def turned(x, theta):
        return functional_call(module, {"theta": theta}, (x, positions))

    assert gradcheck(turned, (x, module.theta)) and gradgradcheck(turned, (x, module.theta), fast_mode=True)


def test_lrpe_keeps_its_table_until_theta_changes():
    module, x = LRPE(8).eval(), torch.randn(5, 8)
    positions = torch.arange(5)

    def through_the_table():
        with torch.no_grad():
            return turn(x, module.table(5, x.dtype))

    for change in (lambda: None, lambda: module.theta.mul_(2), module.double, module.float):
        with torch.no_grad():
            change()
        torch.testing.assert_close(through_the_table(), module(x, positions).detach(), atol=1e-6, rtol=0)
    module.train()
    module.theta.data.mul_(2)
    module.eval()
    torch.testing.assert_close(through_the_table(), module(x, positions).detach(), atol=1e-6, rtol=0)
    assert module.table(5, x.dtype).angles.requires_grad
    with torch.no_grad():
        assert module.table(3, x.dtype).turns.data_ptr() == module.table(5, x.dtype).turns.data_ptr()


@pytest.mark.parametrize("features", [elu, one_plus_elu])
def test_derivatives_of_feature_maps(features):
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    assert gradcheck(features, (x,)) and gradgradcheck(features, (x,))


def test_derivatives_of_rmsnorm():
    x = torch.randn(3, 2, 7, dtype=torch.float64, requires_grad=True)
    assert gradcheck(RMSNorm(), (x,)) and gradgradcheck(RMSNorm(), (x,))


@pytest.mark.parametrize("name", ["transnormer_t1", "linear_transformer_lm"])
def test_a_model_runs_kernels_unless_its_backend_is_torch(name):
    for backend, runs in {"auto": extension.loaded("cpp"), "torch": False}.items():
        model = build_lm(name, attention_backend=backend, dropout=0.1).train()
        with Dispatched() as counted:
            model(tokens(2, 70))[0].sum().backward()
            with torch.no_grad():
                model.eval()(tokens(1, 1), incremental_state={})
        ours = {name for name in counted.calls if name.startswith("causal_linear_attention")}
        ours.discard("causal_linear_attention.step.default")  # which has no backend
        assert bool(ours) == runs, ours


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_derivative_of_rmsnorm_where_epsilon_counts(dtype):
    """For one channel, `x / (x + e)`, it is `e / (x + e)^2`; here x = e = 1e-8."""
    x = torch.tensor([[1e-8]], dtype=dtype, requires_grad=True)
    RMSNorm()(x).backward()
    torch.testing.assert_close(x.grad, torch.tensor([[2.5e7]], dtype=dtype))


@pytest.mark.parametrize(("norm", "expected"), [(RMSNorm(), 0.5), (ScaleNorm(), 1e-8 / 1e-5**0.5)])
def test_the_epsilon_of_a_norm(norm, expected):
    torch.testing.assert_close(norm(torch.tensor([1e-8], dtype=torch.float64)).item(), expected)


def test_padding_in_front_goes_to_the_end_and_back():
    tokens = torch.tensor([[1, 1, 5, 6], [7, 8, 9, 1], [1, 2, 3, 4]])
    rolled, mask, shift = padding_last(tokens, 1)
    assert rolled.tolist() == [[5, 6, 1, 1], [7, 8, 9, 1], [2, 3, 4, 1]] and shift.tolist() == [2, 0, 1]
    assert mask.tolist() == rolled.eq(1).tolist()
    [back] = padding_back([rolled.T.unsqueeze(-1)], shift)
    assert torch.equal(back.squeeze(-1).T, tokens)
    assert padding_last(tokens[1:2], 1)[2] is None


@pytest.mark.parametrize("bias", [True, False])
def test_derivatives_of_glu(bias):
    module = GLU(4, 6, bias=bias).double()
    parameters = dict(module.named_parameters())

    def run(x, *values):
        return functional_call(module, dict(zip(parameters, values, strict=True)), (x,))

    x = torch.randn(3, 2, 4, dtype=torch.float64, requires_grad=True)
    inputs = x, *parameters.values()
    assert gradcheck(run, inputs) and gradgradcheck(run, inputs, fast_mode=True)


class Maps(JoinsMaps):
    maps = ("one", "other")

    def __init__(self, bias=True):
        super().__init__()
        self.one, self.other = (torch.nn.Linear(5, width, bias=bias) for width in (3, 4))
        self.join_maps()


@pytest.mark.parametrize("bias", [True, False])
def test_joined_maps_are_the_separate_ones(bias, monkeypatch):
    module, x = Maps(bias), torch.randn(2, 5)
    expected = [module.one(x), module.other(x)]
    torch.testing.assert_close(list(module.separate_maps(x)), expected)
    monkeypatch.setattr("torch.compiler.is_compiling", lambda: True)
    torch.testing.assert_close(list(module.separate_maps(x)), expected)


def replaced(module):
    module.one.weight = torch.nn.Parameter(torch.randn(3, 5))


def moved(module):
    module.other.weight.data = torch.randn(4, 5)


def hooked(module):
    module.one.register_forward_hook(lambda one, given, out: 2 * out)


def adapted(module):
    class Adapted(torch.nn.Linear):
        def forward(self, x):
            return super().forward(x) + 1

    module.other = Adapted(5, 4)


@pytest.mark.parametrize("change", [replaced, moved, hooked, adapted, copy.deepcopy])
def test_joined_maps_see_changed_maps(change):
    module, x = Maps(), torch.randn(2, 5)
    module = change(module) or module
    expected = [module.one(x), module.other(x)]
    torch.testing.assert_close(list(module.separate_maps(x)), expected)
    with torch.no_grad():
        torch.testing.assert_close(list(module.separate_maps(x)), expected)


@pytest.mark.parametrize("register", ["register_full_backward_hook", "register_full_backward_pre_hook"])
@pytest.mark.parametrize("make, part", [(Maps, "one"), (lambda: GLU(5, 8), "l1")], ids=["maps", "glu"])
def test_hooks_in_the_backward_pass_are_called(register, make, part):
    module, x, calls = make(), torch.randn(3, 2, 5, requires_grad=True), []
    getattr(getattr(module, part), register)(lambda *given: calls.append(given))
    out = module(x) if make is not Maps else module.separate_maps(x)[0]
    out.sum().backward()
    assert len(calls) == 1


def test_glu_sees_adapted_maps():
    """As LoRA adapts them."""
    for name in ("l1", "l2", "l3"):
        module, x = GLU(6, 8), torch.randn(3, 2, 6)
        getattr(module, name).register_forward_hook(lambda one, given, out: out + 1)
        gate, value = module.l1(x), module.l2(x)
        torch.testing.assert_close(module(x), module.l3(torch.nn.functional.silu(gate) * value))


def test_glu_under_autocast():
    module, x = GLU(8, 12), torch.randn(5, 2, 8, requires_grad=True)
    expected = torch.autograd.grad(module(x).sum(), (x, *module.parameters()))
    with torch.autocast("cpu", torch.bfloat16):
        out = module(x)
    assert out.dtype == torch.bfloat16
    found = torch.autograd.grad(out.float().sum(), (x, *module.parameters()))
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == torch.float32
        torch.testing.assert_close(one, other, atol=0.05, rtol=0.05)


def test_sinusoidal_positions_are_exact_at_any_position():
    """They equal float64's; angles in float32 would be off by up to 4e-3."""
    rows = SinusoidalPositions(64, 1)(torch.tensor([[100_000]]))[0, 0]
    frequencies = [10000 ** (-i / 31) for i in range(32)]
    angles = torch.tensor([100_002 * x for x in frequencies], dtype=torch.float64)
    torch.testing.assert_close(rows, torch.cat([angles.sin(), angles.cos()]).float(), atol=1e-6, rtol=0)


@torch.no_grad()
def test_what_lrpe_keeps_is_of_the_weights_that_it_is_called_with():
    lrpe, x = LRPE(512).eval(), torch.randn(1, 1, 8, 512)
    positions = torch.arange(8)
    thetas = [lrpe.theta * (1 + i) for i in range(4)]

    def turned(theta):
        return functional_call(lrpe, {"theta": theta}, (x, positions))

    expected = []
    for theta in thetas:
        lrpe._cache.clear()
        expected.append(turned(theta))
    for i, wanted in enumerate(expected):  # each a tensor of the moment, for which memory is used again
        assert torch.equal(turned(lrpe.theta * (1 + i)), wanted)
    batched = torch.func.vmap(turned)(torch.stack(thetas))
    torch.testing.assert_close(batched, torch.stack(expected))


def test_lrpe_of_inference_mode_sees_weights_that_are_loaded():
    with torch.inference_mode():
        lrpe, other, x = LRPE(8).eval(), LRPE(8).eval(), torch.randn(1, 1, 4, 8)
        lrpe(x, torch.arange(4))
        lrpe.load_state_dict(other.state_dict())
        assert torch.equal(lrpe(x, torch.arange(4)), other(x, torch.arange(4)))
