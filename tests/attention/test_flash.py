"""FLASH and FLASH-quad: the authors' arrays, the formula position by position, and their parts."""

import pytest
import torch
import torch.nn.functional as F

from tests.helpers.golden import load, relative, state
from user_dir.attention import attention_class, build_attention
from user_dir.models.layer import GatedLayer
from user_dir.modules import ScaleNorm, build_norm, rotate_halves


def in_layer(name):
    """Our layer's name for a parameter of the authors' unit, which also holds the norm."""
    return f"self_attn_layer_norm.{name[5:]}" if name.startswith("norm.") else f"self_attn.{name}"


@pytest.mark.parametrize("length", [128, 150])
@pytest.mark.parametrize("kind", ["causal", "full"])
def test_flash_layer_of_the_authors(golden_dir, length, kind):
    arrays = load(golden_dir, "peers_flash_scalenorm.npz")
    unit = build_attention("flash", 32, 1, causal=kind == "causal", key_dim=16, positions=160)
    layer = GatedLayer(unit, 32, "scalenorm")
    layer.load_state_dict({f"self_attn.{name}": x for name, x in state(arrays).items()})
    x = torch.tensor(arrays[f"L{length}/input"], requires_grad=True)
    out = layer(x)
    assert relative(out, arrays[f"L{length}/{kind}/output"]) < 1e-5
    out.backward(torch.tensor(arrays[f"L{length}/cotangent"]))
    assert relative(x.grad, arrays[f"L{length}/{kind}/grad_input"]) < 5e-5
    gradients = state(arrays, f"L{length}/{kind}/grad/")
    assert {in_layer(name) for name in gradients} == {name for name, _ in layer.named_parameters()}
    for name, want in gradients.items():
        assert relative(layer.get_parameter(in_layer(name)).grad, want) < 5e-5, name


def slow_unit(module, x):
    """One row `(N, D)` in float64, entry by entry of the matrix A."""
    options, causal = module.options, module.causal
    z = F.silu(module.base_proj(x))

    def turned(name, position):
        half = options.key_dim // 2
        y = z[position] * getattr(module, f"{name}_weight")[0] + getattr(module, f"{name}_bias")[0]
        angles = position * 10000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
        a, b = y[:half], y[half:]
        return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()])

    def bias(offset):
        longest = options.positions - 1
        return module.w[longest + max(-longest, min(longest, offset))]

    parts = {name: [turned(name, i) for i in range(len(x))] for name in module.projections}
    chunk = getattr(options, "chunk_size", None)
    matrix = torch.zeros(len(x), len(x), dtype=torch.float64)
    for i in range(len(x)):
        for j in range(len(x)):
            if causal and j > i:
                continue
            score = parts["quad_q"][i] @ parts["quad_k"][j]
            if chunk is None:
                matrix[i, j] = F.relu(score / options.positions + bias(j - i)) ** 2
                continue
            if i // chunk == j // chunk:
                matrix[i, j] = F.relu(score / chunk + bias(j - i)) ** 2
            if not causal or j // chunk < i // chunk:
                matrix[i, j] += parts["lin_q"][i] @ parts["lin_k"][j] / chunk
    return module.o(F.silu(module.u_proj(x)) * (matrix @ F.silu(module.v_proj(x))))


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "full"])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("flash_quad", {"positions": 40}),
        ("flash_quad", {"positions": 9}),
        ("flash", {"positions": 40, "chunk_size": 8}),
        ("flash", {"positions": 3, "chunk_size": 8, "expansion": 1}),
    ],
    ids=str,
)
def test_definition(name, options, causal):
    module = build_attention(name, 6, 1, causal=causal, key_dim=4, **options).double()
    with torch.no_grad():  # from their small first values no mistake would show
        for parameter in module.parameters():
            parameter.normal_(std=0.5)
    x = torch.randn(30, 2, 6, dtype=torch.float64)
    padding = torch.arange(30) >= torch.tensor([[30], [19]])
    out, _ = module(x, key_padding_mask=padding)
    torch.testing.assert_close(out[:, 0], slow_unit(module, x[:, 0]))
    torch.testing.assert_close(out[:19, 1], slow_unit(module, x[:19, 1]))


def test_small_first_values():
    module = build_attention("flash", 64, 1, causal=True)
    assert module.w.shape == (1023,) and 0.018 < module.w.std() < 0.022
    assert module.quad_q_weight.shape == (1, 128) and 0.015 < module.quad_q_weight.std() < 0.025
    assert (module.lin_k_bias == 0).all()


def test_every_parameter_has_a_gradient():
    for name in ("flash", "flash_quad"):
        assert attention_class(name).replaces_feed_forward
        module = build_attention(name, 12, 1, causal=True, key_dim=4)
        module(torch.randn(70, 2, 12))[0].sum().backward()
        assert all(p.grad is not None for p in module.parameters())


def test_rotary_halves():
    q, k = torch.randn(2, 1, 8, dtype=torch.float64)
    products = [
        (rotate_halves(q, torch.tensor([m])) * rotate_halves(k, torch.tensor([m - 5]))).sum()
        for m in (5, 9, 400)
    ]
    torch.testing.assert_close(products[0], products[1])
    torch.testing.assert_close(products[0], products[2])
    turned = rotate_halves(torch.tensor([[0.0, 1, 0, 0, 0, 0, 0, 0]]), torch.tensor([3]))[0]
    angle = torch.tensor(3 * 10000**-0.25)
    torch.testing.assert_close(turned[[1, 5]], torch.stack([angle.cos(), angle.sin()]))
    assert rotate_halves(q.bfloat16(), torch.tensor([3])).dtype == torch.bfloat16


def test_scalenorm():
    norm = build_norm("scalenorm", 8)
    assert isinstance(norm, ScaleNorm) and [p.shape for p in norm.parameters()] == [(1,)]
    with torch.no_grad():
        norm.scala.fill_(3.0)
    x = torch.randn(5, 8)
    torch.testing.assert_close(norm(x), 3 * x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt())
    half = norm(torch.full((1, 8), 1e4, dtype=torch.float16))
    assert half.dtype == torch.float16 and torch.allclose(half, torch.tensor(3.0).half())
