"""Launches of TransNormer beside vanilla: counted exactly, and the same results as without fused steps."""

import copy

import pytest
import torch

from causal_linear_attention import extension
from tests.helpers.build import assert_same_gradients
from tests.helpers.counting import Dispatched, kept_bytes, without_kernels
from tests.helpers.lm import build_lm, tokens
from tests.helpers.roberta import build_roberta

TRANSNORMERS = ("transnormer_t1", "transnormer_t2")
compiled = pytest.mark.skipif(not extension.loaded("cpp"), reason=extension.reason("cpp") or "loaded")


def dispatches(name):
    """Launches of six layers: a forward pass, and forward and backward with accumulated gradients."""
    model, given = build_lm(name, decoder_layers=6, dropout=0.1).train(), tokens(2, 256)
    model(given)[0].sum().backward()
    with Dispatched() as counted:
        out = model(given)[0]
        forward = counted.calls.total()
        out.sum().backward()
    return forward, counted.calls.total()


@compiled
def test_an_update_dispatches_fewer_operators_than_vanilla():
    found = {name: dispatches(name) for name in TRANSNORMERS}
    assert found == {"transnormer_t1": (96, 313), "transnormer_t2": (93, 307)}
    assert dispatches("transformer_lm") == (159, 477)


@compiled
def test_kept_memory_is_less_than_vanilla():
    kept = {}
    for name in (*TRANSNORMERS, "transformer_lm"):
        size = {"decoder_layers": 4, "decoder_embed_dim": 96, "dropout": 0.1, "decoder_ffn_embed_dim": 384}
        model = build_lm(name, **size).train()
        kept[name] = kept_bytes(lambda model=model: model(tokens(2, 256), features_only=True))
    assert all(kept[name] < 0.95 * kept["transformer_lm"] for name in TRANSNORMERS), kept


@compiled
@pytest.mark.parametrize(
    ("build", "name"),
    [(build_lm, name) for name in (*TRANSNORMERS, "linear_transformer_lm", "lln_diag_lm")]
    + [(build_roberta, f"roberta_{name}") for name in TRANSNORMERS],
)
def test_fused_steps_change_no_gradient(build, name):
    model = build(name, dropout=0.0).double().train()
    other, given = copy.deepcopy(model), tokens(3, 150)
    outs = []
    for one in (model, other):
        with without_kernels() if one is other else torch.enable_grad():
            out = one(given)[0]
            (out * torch.linspace(-1, 1, out.numel()).view_as(out)).sum().backward()
        outs.append(out)
    torch.testing.assert_close(*outs)
    assert_same_gradients(model, other)


def test_joined_weights_stay_apart_for_all_others():
    """They lie side by side after every change of the module, and are separate parameters."""
    model = build_lm("transnormer_t1")
    state = {name: x.clone() for name, x in model.state_dict().items()}

    def side_by_side(model):
        layer = model.decoder.layers[0]
        pairs = [(layer.self_attn.q_proj, layer.self_attn.k_proj), (layer.glu.l1, layer.glu.l2)]
        for one, other in pairs:
            for x, y in ((one.weight, other.weight), (one.bias, other.bias)):
                assert x.data_ptr() + x.numel() * x.element_size() == y.data_ptr()

    side_by_side(model)
    for changed in (copy.deepcopy(model), copy.deepcopy(model).half(), copy.deepcopy(model).double()):
        side_by_side(changed)
        for name, x in changed.state_dict().items():
            torch.testing.assert_close(x, state[name].to(x.dtype))
    model.decoder.layers[0].self_attn.q_proj.weight.data.zero_()
    key = "decoder.layers.0.self_attn.k_proj.weight"
    assert torch.equal(model.state_dict()[key], state[key])
    moved = copy.deepcopy(model)  # a weight of other memory: copied at each step
    moved.decoder.layers[0].self_attn.k_proj.weight.data = state[key].clone()
    given = tokens(2, 20)
    for one in (model.train(), moved.train()):
        one(given)[0].square().sum().backward()
    assert_same_gradients(model, moved)
    for name, p in model.named_parameters():
        assert p.grad is None or (p.grad.shape == p.shape and p.grad.is_contiguous()), name
