"""RetNet, TransNormerLLM and gated linear attention: public weights, defaults, and long texts."""

import re

import pytest
import torch
import torch.nn.functional as F

from tests.helpers.golden import load, relative, state
from tests.helpers.lm import build_lm, tokens
from user_dir.attention import build_attention
from user_dir.errors import UserError
from user_dir.models.fork_names import RETNET, TRANSNORMERLLM

NAMES = ("retnet_lm", "transnormerllm", "gated_linear_lm")
SIZE = {"decoder_embed_dim": 32, "decoder_layers": 3, "decoder_attention_heads": 4, "glu_dim": 48}
# Names in the golden file, and in the released models.
RELEASED = (
    (r"mixers\.(\d+)\.theta", r"layers.\1.token_mixer.lrpe.theta"),
    (r"mixers\.(\d+)\.", r"layers.\1.token_mixer."),
    (r"(l\d)\.(\d+)\.", r"layers.\2.channel_mixer.\1."),
)
GOLDEN = {
    "retnet_lm": ("decoder.", RETNET, {"share_decoder_input_output_embed": True}),
    "transnormerllm": ("model.", (*RELEASED, *TRANSNORMERLLM), {}),
}


def renamed(name, renaming):
    for pattern, replacement in renaming:
        name = re.sub(f"^{pattern}", replacement, name)
    return name


def public(arch, golden_dir):
    """The arrays of a file and its state dict under the public names."""
    arrays = load(golden_dir, f"{arch}_lm.npz" if arch == "transnormerllm" else f"{arch}.npz")
    return arrays, {renamed(key, RELEASED): value for key, value in state(arrays).items()}


@pytest.mark.parametrize("prefixed", [False, True], ids=["bare", "prefixed"])
@pytest.mark.parametrize("arch", GOLDEN)
def test_public_weights_give_the_public_logits(golden_dir, arch, prefixed):
    prefix, renaming, options = GOLDEN[arch]
    arrays, weights = public(arch, golden_dir)
    if prefixed:
        weights = {key if key == "lm_head.weight" else prefix + key: x for key, x in weights.items()}
    model = build_lm(arch, 50, **SIZE, **options)
    model.load_state_dict(weights)
    logits, extra = model(torch.tensor(arrays["tokens"]))
    assert relative(logits, arrays["logits"]) < 1e-5
    for layer, x in enumerate(extra["inner_states"]):
        assert relative(x.transpose(0, 1), arrays[f"inner/{layer}"]) < 1e-5
    F.cross_entropy(logits.flatten(0, 1), torch.tensor(arrays["targets"]).flatten()).backward()
    parameters = dict(model.named_parameters())
    for name, want in state(arrays, "grad/").items():
        assert relative(parameters[f"decoder.{renamed(name, renaming)}"].grad, want) < 5e-5, name


@torch.no_grad()
def test_decoding_is_torchscales_recurrent_form(golden_dir):
    arrays, weights = public("retnet_lm", golden_dir)
    model, steps = build_lm("retnet_lm", 50, **SIZE, **GOLDEN["retnet_lm"][2]), {}
    model.load_state_dict(weights)
    x = torch.tensor(arrays["tokens"][:, :40])
    out = [model(x[:, : i + 1], incremental_state=steps)[0] for i in range(40)]
    assert relative(torch.cat(out, 1), arrays["logits_recurrent_40"]) < 1e-5


@pytest.mark.parametrize(("name", "change"), [("angle", 1.01), ("decay", 0.9)])
def test_constants_of_another_retnet_are_refused(golden_dir, name, change):
    _, weights = public("retnet_lm", golden_dir)
    weights = {key: x.half() for key, x in weights.items()}
    build_lm("retnet_lm", 50, **SIZE, **GOLDEN["retnet_lm"][2]).load_state_dict(dict(weights))
    weights[f"retnet_rel_pos.{name}"] *= change
    with pytest.raises(UserError, match=f"retnet_rel_pos.{name} of the checkpoint does not fit 4 heads"):
        build_lm("retnet_lm", 50, **SIZE, **GOLDEN["retnet_lm"][2]).load_state_dict(weights)


@pytest.mark.parametrize("arch", NAMES)
def test_embeddings_are_tied_on_request_and_scaled_in_transnormerllm_alone(arch):
    decoder = build_lm(arch).decoder
    assert decoder.output_projection.weight is not decoder.embed_tokens.weight
    assert decoder.embed_scale == (24**0.5 if arch == "transnormerllm" else 1)
    assert decoder.embed_positions is None
    assert [name for name, _ in decoder.named_parameters() if name.endswith("bias")] == (
        [f"layers.{i}.self_attn.decay_proj.bias" for i in range(2)] if arch == "gated_linear_lm" else []
    )
    tied = build_lm(arch, share_decoder_input_output_embed=True).decoder
    assert tied.output_projection.weight is tied.embed_tokens.weight


def test_slopes_and_positions_follow_the_layer_also_of_a_pruned_model():
    kept = build_lm("transnormerllm", decoder_layers=4, decoder_layers_to_keep="1,3").decoder.layers
    whole = build_lm("transnormerllm", decoder_layers=4).decoder.layers
    assert [layer.self_attn.lrpe is None for layer in whole] == [False, True, True, True]
    assert [layer.self_attn.lrpe for layer in kept] == [None, None]
    for ours, of_whole in zip(kept, (whole[1], whole[3]), strict=True):
        assert torch.equal(ours.self_attn.rates, of_whole.self_attn.rates)
    six = build_attention("lightning", 12, 6, causal=True).rates / -(1 + 1e-5)
    powers = torch.tensor([2, 4, 6, 8, 1, 3], dtype=torch.float64)  # of four heads, then of eight
    torch.testing.assert_close(six, 2.0**-powers)


@pytest.mark.parametrize("arch", NAMES)
@torch.no_grad()
def test_a_long_text_in_segments_equals_one_pass(arch):
    sizes = {"decoder_embed_dim": 8, "tokens_per_sample": 65_536, "max_target_positions": 65_536}
    model, x = build_lm(arch, **sizes).double(), tokens(1, 65_536)
    whole, carried = model(x)[0], {}
    parts = [model(piece, incremental_state=carried, next_segment=True)[0] for piece in x.split(9000, 1)]
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=1e-7, atol=1e-7)


def test_retention_needs_heads_of_an_even_width():
    with pytest.raises(UserError, match="4 heads of a width of 12 have 3 channels each; choose a number"):
        build_attention("retention", 12, 4, causal=True)


@torch.no_grad()
def test_gated_attention_is_its_formula():
    """Of inputs so small that the norm's epsilon counts, without which the scale of q would not matter."""
    module = build_attention("gated", 12, 3, causal=True, value_dim=18).double()
    for parameter in module.parameters():
        parameter += 0.2 * torch.randn_like(parameter)
    x = 0.2 * torch.randn(20, 12, dtype=torch.float64)
    q, k, v, u = (x @ module.get_submodule(f"{name}_proj").weight.T for name in "qkvg")
    kept = torch.sigmoid(x @ module.decay_proj.weight.T + module.decay_proj.bias) ** (1 / 16)
    rows = []
    for head in range(3):
        keys, values = slice(4 * head, 4 * head + 4), slice(6 * head, 6 * head + 6)
        total, outs = torch.zeros(4, 6, dtype=torch.float64), []
        for t in range(20):
            total = kept[t, head] * total + torch.outer(k[t, keys], v[t, values])
            out = q[t, keys] @ total / 4**0.5
            outs.append(module.norm.weight * out / (out.square().mean() + 1e-6).sqrt())
        rows.append(torch.stack(outs) * u[:, values] * torch.sigmoid(u[:, values]))
    expected = torch.cat(rows, 1) @ module.out_proj.weight.T
    torch.testing.assert_close(module(x[:, None])[0][:, 0], expected, rtol=1e-9, atol=1e-9)
