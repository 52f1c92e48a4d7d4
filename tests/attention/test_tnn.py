"""TNN: the formula position by position, the network of distances, its options."""

import pytest
import torch
import torch.nn.functional as F

from user_dir.attention import build_attention


def build(causal, dim=6, **options):
    options = {"network_dim": 5, "network_layers": 2, **options}
    return build_attention("tnn", dim, 1, causal=causal, **options).double()


def slow_coefficient(module, distance):
    """c(distance) of each channel, layer by layer."""
    network = module.toep.rpe
    x = network.pos_proj.weight[:, 0] * distance + network.pos_proj.bias
    for layer in (*network.layers, network.out):
        x = layer[2].weight @ F.relu(x / (x.norm() / len(x) ** 0.5 + 1e-8)) + layer[2].bias
    return x


def slow_unit(module, x):
    """One row `(N, D)`: the sum over j, one by one."""
    values = F.silu(module.v_proj(x))
    mixed = torch.zeros_like(values)
    for i in range(len(x)):
        for j in range(i + 1 if module.causal else len(x)):
            weight = slow_coefficient(module, i - j) * module.options.decay ** abs(i - j)
            mixed[i] += weight * values[j]
    return module.o(F.silu(module.u_proj(x)) * mixed)


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "full"])
@pytest.mark.parametrize("length", [1, 2, 16, 23])
def test_definition(causal, length):
    module = build(causal, decay=0.8, expansion=2)
    x = torch.randn(length, 2, 6, dtype=torch.float64)
    padding = torch.arange(length) >= torch.tensor([[length], [max(1, length - 6)]])
    out, _ = module(x, key_padding_mask=padding)
    torch.testing.assert_close(out[:, 0], slow_unit(module, x[:, 0]))
    size = int((~padding[1]).sum())
    torch.testing.assert_close(out[:size, 1], slow_unit(module, x[:size, 1]))


def test_decay_is_stored_and_stays():
    module = build(True)
    assert module.toep.gamma.shape == (1, 1, 18) and not module.toep.gamma.requires_grad
    assert (module.toep.gamma - 0.99).abs().max() < 1e-6
    module(torch.randn(9, 2, 6, dtype=torch.float64))[0].sum().backward()
    assert all(p.grad is not None for p in module.parameters() if p.requires_grad)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_decay_is_not_rounded_in_half_precision(dtype):
    toep = build(True, decay=0.9999).float().to(dtype).toep
    distances = torch.tensor([4096])
    decayed = toep.coefficients(distances) / toep.rpe(distances)
    torch.testing.assert_close(decayed, torch.full_like(decayed, 0.9999**4096), rtol=1e-3, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_distances_keep_their_precision_in_half_precision(dtype):
    """bfloat16 cannot tell 4001 from 4002."""
    module = build(True).to(dtype)
    coefficients = module.toep.rpe(torch.arange(4000, 4010))
    assert coefficients.dtype == torch.float32
    torch.testing.assert_close(
        coefficients, module.float().toep.rpe(torch.arange(4000, 4010)), rtol=0, atol=0
    )


def test_decoding_grows_its_cache_geometrically():
    module, state = build(True), {}
    sizes = set()
    for _ in range(100):
        module(torch.randn(1, 2, 6, dtype=torch.float64), incremental_state=state)
        sizes.add(next(iter(state.values()))["v"].shape[1])
    assert sizes == {1, 2, 4, 8, 16, 32, 64, 128}
