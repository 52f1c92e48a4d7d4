"""Mechanisms and modules against arrays computed with the authors' code."""

import pytest
import torch

from tests.helpers.golden import check, load, relative, state
from user_dir.attention import build_attention
from user_dir.modules import GLU, LRPE, RMSNorm

CASES = [
    ("attn_linear_causal_elu.npz", "norm", True, {"feature_map": "elu"}),
    ("attn_linear_full_1pelu.npz", "norm", False, {"feature_map": "1+elu"}),
    ("attn_local_causal_relu.npz", "diag", True, {"activation": "relu", "block_size": 64}),
]


@pytest.mark.parametrize(("file", "name", "causal", "options"), CASES, ids=[c[0] for c in CASES])
def test_transnormer_attention(golden_dir, file, name, causal, options):
    arrays = load(golden_dir, file)
    module = build_attention(name, 32, 4, causal=causal, **options)
    module.load_state_dict(state(arrays))
    check(module, arrays)


@pytest.mark.parametrize("length", [128, 150])
@pytest.mark.parametrize("kind", ["causal", "full"])
def test_linear_transformer_attention(golden_dir, length, kind):
    arrays = load(golden_dir, "peers_linear_elu.npz")
    module = build_attention("elu", 32, 4, causal=kind == "causal")
    module.load_state_dict(state(arrays))
    check(module, arrays, f"L{length}/{kind}/")


@pytest.mark.parametrize("kind", ["causal", "full", "causal_padded", "full_padded"])
def test_linear_product_equals_fast_transformers(golden_dir, kind):
    from causal_linear_attention import causal_linear_attention, linear_attention
    from user_dir.attention.parts.features import one_plus_elu

    arrays = state(load(golden_dir, "peers_linear_elu.npz"), "ft/L150/")
    q, k, v = (arrays[name].requires_grad_() for name in "qkv")
    mask = None
    if kind.endswith("padded"):
        mask = torch.arange(150).expand(2, -1) >= torch.tensor([[150], [100]])
    features = one_plus_elu(q), one_plus_elu(k)
    if kind.startswith("full"):
        out = linear_attention(*features, v, normalize=True, padding_mask=mask)
    else:
        phi_k = features[1]
        if mask is not None:
            phi_k = phi_k.masked_fill(mask[:, None, :, None], 0.0)
        out = causal_linear_attention(features[0], phi_k, v, normalize=True)
    assert relative(out, arrays[f"{kind}/output"]) < 1e-5
    out.backward(arrays["cotangent"])
    for name, x in zip("qkv", (q, k, v), strict=True):
        assert relative(x.grad, arrays[f"{kind}/grad_{name}"]) < 5e-5


def test_lrpe(golden_dir):
    arrays = state(load(golden_dir, "pieces.npz"), "urpe/")
    module = LRPE(8)
    torch.testing.assert_close(module.theta.detach(), arrays["theta_init"])
    module.load_state_dict({"theta": arrays["theta"], "v": arrays["v"]})
    x = arrays["in3"].requires_grad_()
    out = module(x, torch.arange(150))
    assert relative(out, arrays["out3"]) < 1e-5
    out.backward(arrays["cotangent3"])
    assert relative(x.grad, arrays["grad_in3"]) < 5e-5
    assert relative(module.theta.grad, arrays["grad_theta"]) < 5e-5
    assert relative(module(arrays["in4"], torch.arange(64)), arrays["out4"]) < 1e-5


def test_rmsnorm_with_tiny_and_zero_rows(golden_dir):
    arrays = state(load(golden_dir, "pieces.npz"), "rms/")
    x = arrays["in"].requires_grad_()
    out = RMSNorm()(x)
    assert relative(out, arrays["out"]) < 1e-5
    out.backward(arrays["cotangent"])
    for row in range(len(x)):
        assert relative(x.grad[row], arrays["grad_in"][row]) < 5e-5


def test_glu(golden_dir):
    arrays = load(golden_dir, "pieces.npz")
    weights = {k: v for k, v in state(arrays, "glu/").items() if k.startswith("l")}
    x = torch.tensor(arrays["glu/in"])
    for name, key in (("silu", "out_silu"), ("identity", "out_swish_as_at_HEAD")):
        module = GLU(32, 85, name)
        module.load_state_dict(weights)
        assert relative(module(x), arrays[f"glu/{key}"]) < 1e-5
