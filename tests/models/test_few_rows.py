"""Decoding steps that compute half a layer: the same as its modules, which are called where they must be."""

import copy

import pytest
import torch
from torch import nn

from causal_linear_attention import extension
from causal_linear_attention.operators import NAMESPACE
from tests.helpers.counting import Dispatched
from tests.helpers.lm import build_lm, tokens
from user_dir.models import layer

pytestmark = pytest.mark.skipif(not extension.loaded("cpp"), reason=extension.reason("cpp") or "loaded")
STEPS = ("causal_linear_attention.linear_step.default", "causal_linear_attention.gated_step.default")
MODELS = {
    "T1": ("transnormer_t1", {}, (4, 2)),
    "T2": ("transnormer_t2", {}, (4, 2)),
    "T1, odd": (
        "transnormer_t1",
        {"decoder_embed_dim": 33, "decoder_attention_heads": 3, "glu_dim": 7},
        (4, 2),
    ),
    "no positions": ("transnormer_t1", {"diag_positions": "none", "norm_positions": "none"}, (4, 2)),
    "without biases": ("transnormer_t2", {"no_glu_bias": True}, (4, 2)),
    "another activation": ("transnormer_t1", {"glu_activation": "gelu"}, (8, 0)),
    "1+elu": ("linear_transformer_lm", {"decoder_norm": "rmsnorm", "decoder_ffn": "glu"}, (4, 2)),
    "LLN": ("lln_lm", {"decoder_norm": "rmsnorm"}, (8, 0)),
    "1+elu, LayerNorm": ("linear_transformer_lm", {}, (8, 0)),
    "LLN, LayerNorm": ("lln_lm", {}, (8, 0)),
    "no output map": ("cosformer_lm", {"decoder_norm": "rmsnorm", "cosformer_no_output_map": True}, (4, 0)),
    "side by side": ("transnormer_t1", {"decoder_attention": "diag+norm*2"}, (0, 2)),
    "another attention": ("tnn_lm", {"decoder_layers": 2, "glu_dim": 48}, (0, 2)),
    "post-norm": ("transnormer_t1", {"decoder_norm_position": "post"}, (0, 0)),
    "LayerNorm": ("transnormer_t1", {"decoder_norm": "layernorm"}, (8, 0)),
    "RetNet": ("retnet_lm", {"glu_dim": 24}, (8, 0)),
    "RetNet, RMSNorm": ("retnet_lm", {"decoder_norm": "rmsnorm"}, (4, 2)),
    "GLA": ("gated_linear_lm", {"gated_value_dim": 12}, (10, 0)),
    "TransNormerLLM": ("transnormerllm", {}, (8, 0)),
}


def decoded(model, rows=3, prompt=2, length=9):
    """Outputs of a prompt and of single tokens, with a reordering of beams on the way."""
    given, state = tokens(rows, length), {}
    outs = [model(given[:, :prompt], incremental_state=state)[0]]
    for end in range(prompt + 1, length + 1):
        outs.append(model(given[:, :end], incremental_state=state)[0])
        if end == prompt + 3:
            order = torch.arange(rows).flip(0) // 2
            model.decoder.reorder_incremental_state_scripting(state, order)
    return torch.cat(outs, 1)


@torch.no_grad()
def check(model, calls, **options):
    """Equal to the modules' own results, with so many calls of the steps for a token."""
    expected, found = None, decoded(model, **options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layer, "few_rows", lambda x: False)
        expected = decoded(model, **options)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=2e-5)
    state = {}
    model(tokens(1, 2), incremental_state=state)
    with Dispatched() as counted:
        model(tokens(1, 3), incremental_state=state)
    assert tuple(counted.calls[name] for name in STEPS) == calls


@pytest.mark.parametrize("name", MODELS)
def test_equal_to_the_modules(name):
    arch, options, calls = MODELS[name]
    check(build_lm(arch, **{"decoder_layers": 2, **options}), calls)


@pytest.mark.parametrize("rows", [1, 8, 9])
def test_batches(rows):
    check(build_lm("transnormer_t1"), (4, 2), rows=rows)


def add_one(module, given, out):
    return out + 1


HOOKED = {
    "transnormer_t1": {
        "self_attn.q_proj": (2, 2),
        "self_attn.out_proj": (2, 2),
        "self_attn.norm": (2, 2),
        "self_attn_layer_norm": (4, 2),
        "final_layer_norm": (6, 1),
        "glu": (4, 1),
        "glu.l1": (4, 1),
        "glu.l3": (4, 1),
    },
    "linear_transformer_lm": {
        "self_attn.v_proj": (6, 0),
        "self_attn_layer_norm": (8, 0),
        "final_layer_norm": (8, 0),
        "fc1": (6, 0),
        "fc2": (6, 0),
    },
    "retnet_lm": {
        "self_attn.v_proj": (7, 0),
        "self_attn.out_proj": (7, 0),
        "self_attn_layer_norm": (8, 0),
        "final_layer_norm": (8, 0),
        "glu": (6, 0),
    },
    "gated_linear_lm": {"self_attn.decay_proj": (9, 0), "self_attn.norm": (10, 0)},
    "transnormerllm": {"self_attn.qkvu_proj": (7, 0), "self_attn.norm": (8, 0), "final_layer_norm": (8, 0)},
}
"""The steps that run, by architecture and part with a hook."""


@pytest.mark.parametrize(("arch", "part"), [(arch, part) for arch, parts in HOOKED.items() for part in parts])
def test_parts_with_hooks_are_called(arch, part):
    model = build_lm(arch, decoder_layers=2)
    plain = decoded(model)
    model.decoder.layers[1].get_submodule(part).register_forward_hook(add_one)
    check(model, HOOKED[arch][part])
    assert not torch.allclose(decoded(model), plain)


@pytest.mark.parametrize("method", ["decode", "features"])
def test_a_method_that_was_replaced_is_called(method, monkeypatch):
    model = build_lm("linear_transformer_lm", decoder_layers=2)
    attention, seen = model.decoder.layers[1].self_attn, []
    own = getattr(attention, method)
    monkeypatch.setattr(attention, method, lambda *given: seen.append(given) or own(*given), raising=False)
    check(model, (8, 0))
    assert seen


@pytest.mark.parametrize(
    "arch", ["linear_transformer_lm", "lln_lm", "transnormer_t2", "gated_linear_lm", "transnormerllm"]
)
def test_a_backend_without_kernels_runs_no_kernel(arch):
    model = build_lm(arch, decoder_layers=2, attention_backend="torch")
    with torch.no_grad(), Dispatched() as counted:
        decoded(model)
    assert counted.calls and not [name for name in counted.calls if name.startswith(NAMESPACE)]


@pytest.mark.parametrize(("arch", "calls"), [("transnormer_t1", (2, 2)), ("retnet_lm", (7, 0))])
def test_an_attention_with_a_hook_is_called(arch, calls):
    model, seen = build_lm(arch, decoder_layers=2), []
    model.decoder.layers[0].self_attn.register_forward_pre_hook(lambda *given: seen.append(given))
    check(model, calls)
    assert seen


class LowRank(nn.Linear):
    """As LoRA adapts a linear map."""

    def forward(self, x):
        return super().forward(x) + 0.5 * x[..., :1]


@pytest.mark.parametrize(
    ("part", "calls"), [("self_attn.v_proj", (0, 2)), ("glu.l2", (4, 0)), ("glu.l3", (4, 0))]
)
def test_adapted_maps_are_called(part, calls):
    model = build_lm("transnormer_t1")
    plain = decoded(model)
    for one in model.decoder.layers:
        one.get_submodule(part).__class__ = LowRank
    check(model, calls)
    assert not torch.allclose(decoded(model), plain)


def test_parametrised_maps_are_computed():
    model = build_lm("transnormer_t2")
    nn.utils.parametrizations.weight_norm(model.decoder.layers[0].self_attn.k_proj)
    check(model, (2, 2))


def test_weights_that_moved_are_seen():
    model = build_lm("transnormer_t1")
    for one in model.decoder.layers:
        one.self_attn.q_proj.weight.data = one.self_attn.q_proj.weight.data * 2
        one.glu.l3.weight.data.mul_(2)
    check(model, (0, 2))
    check(copy.deepcopy(model), (4, 2))


def test_other_types_and_training_go_through_the_modules():
    for model in (build_lm("transnormer_t1").double(), build_lm("transnormer_t1").bfloat16()):
        check(model, (0, 0))
    model = build_lm("transnormer_t1", dropout=0.1).train()
    with torch.no_grad(), Dispatched() as counted:
        decoded(model)
    assert not counted.calls[STEPS[0]]
    with Dispatched() as counted, torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        decoded(build_lm("transnormer_t1"))
    assert not counted.calls[STEPS[0]] and not counted.calls[STEPS[1]]
