"""Mechanisms and modules against arrays computed with the authors' code."""

import json

import numpy as np
import pytest
import torch

from user_dir.attention import build_attention
from user_dir.modules import GLU, LRPE, RMSNorm


def relative(got, want):
    got, want = got.detach(), torch.as_tensor(want)
    return float((got - want).abs().max() / want.abs().max())


def load(golden_dir, file):
    return {key: value for key, value in np.load(golden_dir / file).items() if key != "meta"}


CASES = [
    ("attn_linear_causal_elu.npz", "norm", True, {"feature_map": "elu"}),
    ("attn_linear_full_1pelu.npz", "norm", False, {"feature_map": "1+elu"}),
    ("attn_local_causal_relu.npz", "diag", True, {"activation": "relu", "block_size": 64}),
]


def state(arrays, prefix="state/"):
    return {
        key.removeprefix(prefix): torch.tensor(value)
        for key, value in arrays.items()
        if key.startswith(prefix)
    }


def check(module, arrays, prefix=""):
    """Output, gradient of the input and gradients of all parameters named in the file."""
    x = torch.tensor(arrays[f"{prefix[: prefix.find('/') + 1]}input"], requires_grad=True)
    cotangent = torch.tensor(arrays[f"{prefix[: prefix.find('/') + 1]}cotangent"])
    out, _ = module(x)
    assert relative(out, arrays[f"{prefix}output"]) < 1e-5
    out.backward(cotangent)
    assert relative(x.grad, arrays[f"{prefix}grad_input"]) < 5e-5
    gradients = state(arrays, f"{prefix}grad/")
    assert gradients
    parameters = dict(module.named_parameters())
    largest = max(g.abs().max() for g in gradients.values())
    for name, want in gradients.items():
        # The authors' key bias has a zero gradient under 1+elu sums but for rounding.
        scale = max(want.abs().max(), 1e-6 * largest)
        assert (parameters[name].grad - want).abs().max() / scale < 5e-5, name


def check_run(module, golden_dir, file, run):
    """As `check`, of a run of a file that names the parameters whose gradient is zero by analysis."""
    meta = json.loads(str(np.load(golden_dir / file)["meta"]))
    zero = meta["runs"][run]["analytically_zero_gradient"]
    arrays, place = load(golden_dir, file), run.rpartition("/")[0]
    x = torch.tensor(arrays[f"{place}/input"], requires_grad=True)
    out, _ = module(x)
    out.backward(torch.tensor(arrays[f"{place}/cotangent"]))
    assert relative(out, arrays[f"{run}/output"]) < 1e-5
    assert relative(x.grad, arrays[f"{run}/grad_input"]) < 5e-5
    for name, parameter in module.named_parameters():
        if name in zero:
            assert parameter.grad.abs().max() < 1e-5
        else:
            assert relative(parameter.grad, arrays[f"{run}/grad/{name}"]) < 5e-5, name


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
