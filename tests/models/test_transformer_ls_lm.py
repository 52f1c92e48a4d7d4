"""The language model of Transformer-LS: defaults, body, initialisation, padding, decoding."""

import torch

from tests.helpers.lm import PAD, build_lm, tokens

SMALL = {"transformer_ls_window": 16, "transformer_ls_chunk": 8, "transformer_ls_rank": 2}


def build(**options):
    return build_lm("transformer_ls_lm", **{**SMALL, **options}).double()


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-8)


def test_defaults_are_the_papers():
    attention = build_lm("transformer_ls_lm").decoder.layers[0].self_attn
    assert (attention.window, attention.rank, attention.chunk) == (64, 1, 32)


def test_body_is_post_norm_without_positions_and_with_a_bias_in_the_head():
    model = build()
    decoder = model.decoder
    assert decoder.embed_positions is None and decoder.layer_norm is None
    assert not any(layer.pre_norm for layer in decoder.layers)
    assert decoder.output_projection.weight is decoder.embed_tokens.weight
    x = tokens(2, 9)
    features, _ = model(x, features_only=True)
    with torch.no_grad():
        decoder.output_projection.bias.normal_()
    expected = features @ decoder.embed_tokens.weight.T + decoder.output_projection.bias
    close(model(x)[0], expected)
    # sqrt(D) E, then layers of norm(x + f(x)).
    y = 24**0.5 * decoder.embed_tokens(x).transpose(0, 1)
    for layer in decoder.layers:
        y = layer.self_attn_layer_norm(y + layer.self_attn(y)[0])
        y = layer.final_layer_norm(y + layer.fc2(torch.relu(layer.fc1(y))))
    close(features, y.transpose(0, 1))


def test_initialisation():
    model = build_lm("transformer_ls_lm", words=500, decoder_embed_dim=128)
    assert (model.decoder.embed_tokens.weight[PAD] == 0).all()
    for name, parameter in model.named_parameters():
        if name.endswith("norm.weight") or (".dual_ln" in name and name.endswith("weight")):
            assert abs(parameter.mean() - 1) < 0.01 and 0.015 < parameter.std() < 0.025, name
        elif name.endswith(("weight", "r_w_bias", "r_r_bias")):
            assert abs(parameter.mean()) < 0.005 and 0.016 < parameter.std() < 0.024, name
        else:
            assert (parameter == 0).all(), name


def test_no_memory_of_earlier_batches():
    model = build()
    x, other = tokens(2, 70), tokens(2, 70, seed=4)
    first = model(x)[0]
    model(other)
    assert torch.equal(model(x)[0], first)


def test_checkpoint_of_the_authors_fork_loads():
    """Theirs is a model inside the decoder, with its own names and a buffer that is computed here."""
    model, other = build(), build()
    renamed = {
        "embed_tokens.": "in_emb.",
        "output_projection.": "out_emb.",
        ".self_attn.": ".attn.",
        ".self_attn_layer_norm.": ".norm1.",
        ".final_layer_norm.": ".norm2.",
        ".fc1.": ".ff.fc1.",
        ".fc2.": ".ff.fc2.",
    }
    theirs = {"decoder.model.pos_emb.inv_freq": torch.ones(12)}
    for key, value in model.state_dict().items():
        for own, name in renamed.items():
            key = key.replace(own, name)
        theirs[key.replace("decoder.", "decoder.model.", 1)] = value
    assert {"decoder.model.layers.1.attn.r_net.bias", "decoder.model.out_emb.bias"} < theirs.keys()
    other.load_state_dict(theirs)
    x = tokens(2, 40)
    assert torch.equal(other(x)[0], model(x)[0])


def test_its_parts_are_options_of_every_language_model():
    model = build_lm(
        "transnormer_t1",
        decoder_attention="transformer_ls,norm",
        decoder_norm_position="post",
        decoder_output_bias="learned",
        decoder_init_std=0.5,
        transformer_ls_chunk=4,
    )
    first = model.decoder.layers[0]
    assert first.self_attn.chunk == 4 and not first.pre_norm and model.decoder.layer_norm is None
    assert model.decoder.output_projection.bias is not None
    assert 0.4 < first.self_attn.proj_query.weight.std() < 0.6
    plain = build_lm("transnormer_t1")
    assert plain.decoder.output_projection.bias is None and plain.decoder.layers[0].pre_norm
