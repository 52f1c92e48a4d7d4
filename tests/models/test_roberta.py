"""The RoBERTa encoders: fairseq's own as reference, the fork's checkpoints, pruning, positions."""

from argparse import Namespace

import torch
from fairseq.models.roberta import RobertaModel

from tests.helpers.roberta import PAD, build_roberta, sentences, task


def test_softmax_equals_the_roberta_of_fairseq():
    """Its checkpoints load, and logits, states and gradients agree."""
    ours = build_roberta("roberta_softmax")
    settings = Namespace(
        encoder_layers=2,
        encoder_embed_dim=24,
        encoder_ffn_embed_dim=40,
        encoder_attention_heads=2,
        dropout=0.0,
        attention_dropout=0.0,
        tokens_per_sample=256,
    )
    theirs = RobertaModel.build_model(settings, task(40)).eval()
    state = theirs.state_dict()
    ours.upgrade_state_dict(state)
    ours.load_state_dict(state)
    tokens = sentences([30, 17, 1])
    expected, _ = theirs(tokens, return_all_hiddens=True)
    got, extra = ours(tokens, return_all_hiddens=True)
    real = tokens.ne(PAD)
    torch.testing.assert_close(got[real], expected[real], rtol=1e-5, atol=1e-5)
    assert len(extra["inner_states"]) == 3
    for model, logits in ((theirs, expected), (ours, got)):
        logits[real].square().sum().backward()
        assert model.encoder.lm_head.bias.grad is not None
    gradients = dict(theirs.named_parameters())
    for name, parameter in ours.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[name].grad, rtol=1e-4, atol=1e-4)


def test_masked_tokens_are_all_that_is_projected():
    model = build_roberta("roberta_transnormer_t1")
    tokens = sentences([12, 7])
    mask = torch.zeros_like(tokens, dtype=torch.bool)
    mask[0, 3] = mask[1, 2] = True
    torch.testing.assert_close(model(tokens, masked_tokens=mask)[0], model(tokens)[0][mask])


def test_checkpoint_of_the_fork_loads():
    """Its norms have no entries; old entries of fairseq's are dropped."""
    model, other = build_roberta("roberta_transnormer_t1"), build_roberta("roberta_transnormer_t1")
    state = {key.replace("encoder.", "decoder.", 1): value for key, value in model.state_dict().items()}
    assert not any("self_attn_layer_norm" in key for key in state)
    state["decoder.sentence_encoder.version"] = torch.tensor([3.0])
    other.upgrade_state_dict(state)
    other.load_state_dict(state)
    tokens = sentences([12])
    assert torch.equal(other(tokens)[0], model(tokens)[0])


def test_options_reach_the_layers():
    model = build_roberta(
        "roberta_transnormer_t2",
        encoder_attention="diag+norm,elu",
        diag_block_size=16,
        encoder_ffn="ffn",
        encoder_normalize_before=True,
        untie_weights_roberta=True,
        encoder_layers_to_keep="0",
    )
    encoder = model.encoder.sentence_encoder
    assert len(encoder.layers) == 1 and encoder.layer_norm is not None
    diag = encoder.layers[0].self_attn.parts[0]
    assert diag.options.block_size == 16 and diag.options.activation == "softmax" and not diag.causal
    assert encoder.layers[0].pre_norm and hasattr(encoder.layers[0], "fc1")
    assert model.encoder.lm_head.weight is not encoder.embed_tokens.weight
