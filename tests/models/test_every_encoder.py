"""Laws of every encoder: padding on either side changes nothing, and a saved model gives the same.

Also what the parts of several encoders have in common: one layer plan, samples, first values, limits.
"""

import pytest
import torch
from fairseq.models import MODEL_REGISTRY

from tests.helpers.build import assert_all_train, assert_same_gradients
from tests.helpers.lm import build_lm
from tests.helpers.roberta import PAD, SMALL_PARTS, build_roberta, sentences
from user_dir.attention import attention_class, attention_names
from user_dir.errors import UserError

ENCODERS = sorted(
    name
    for name, model in MODEL_REGISTRY.items()
    if name.startswith("roberta_") and hasattr(model, "default_plan")
)
# Their scale is that of the batch's real tokens in training, so that there a row depends on its neighbours.
BATCH_STATISTICS = ("roberta_lln", "roberta_lln_diag")
encoders = pytest.mark.parametrize("arch", ENCODERS)


def build(arch: str, **options):
    return build_roberta(arch, **SMALL_PARTS, **options)


def logits_of(model, tokens):
    """From the same state of the generator, from which dropout draws."""
    torch.manual_seed(3)
    return model(tokens)[0]


@pytest.mark.parametrize(
    ("arch", "mode"),
    [(arch, mode) for arch in ENCODERS for mode in ("eval", "train")[: 1 + (arch not in BATCH_STATISTICS)]],
)
def test_a_sentence_is_the_same_alone_and_in_a_padded_batch(arch, mode):
    model = build(arch).double()
    model.train(mode == "train")
    lengths = [150, 64, 65, 17, 1]
    alone = [logits_of(model, row[row.ne(PAD)].unsqueeze(0))[0] for row in sentences(lengths, 150)]
    for left in (False, True):
        batch = sentences(lengths, 163, left=left)
        together = logits_of(model, batch)
        for row, expected in enumerate(alone):
            torch.testing.assert_close(together[row][batch[row].ne(PAD)], expected, rtol=1e-8, atol=1e-8)


@encoders
def test_more_padding_changes_nothing_in_training(arch):
    model = build(arch).double().train()
    lengths = [70, 64, 1]
    narrow, wide = sentences(lengths, 70), sentences(lengths, 90, left=True)
    expected, got = (logits_of(model, tokens)[tokens.ne(PAD)] for tokens in (narrow, wide))
    torch.testing.assert_close(got, expected, rtol=1e-8, atol=1e-8)


@encoders
def test_padding_contributes_no_gradient(arch):
    model = build(arch).double()
    batch = sentences([70, 9], 75)
    logits = logits_of(model, batch)
    weights = torch.randn_like(logits)
    logits[batch.ne(PAD)].mul(weights[batch.ne(PAD)]).sum().backward()
    together = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    for row, kept in enumerate(batch.ne(PAD)):
        alone = logits_of(model, batch[row, kept].unsqueeze(0))
        alone[0].mul(weights[row, kept]).sum().backward()
    for name, gradient in together.items():
        torch.testing.assert_close(model.get_parameter(name).grad, gradient, rtol=1e-8, atol=1e-8)


@encoders
def test_a_saved_model_gives_the_same(arch):
    model, other = build(arch), build(arch)
    tokens = sentences([200, 31])
    model.train()(tokens)  # samples and averages other than those it was built with
    logits, _ = model.eval()(tokens)
    assert torch.equal(model(tokens)[0], logits)
    state = model.state_dict()
    other.upgrade_state_dict(state)
    other.load_state_dict(state)
    assert torch.equal(other(tokens)[0], logits)


@encoders
def test_every_parameter_trains_also_with_checkpointed_activations(arch):
    """The recomputation draws the samples of the first pass."""
    plain, other = build(arch).train(), build(arch, checkpoint_activations=True).train()
    other.load_state_dict(plain.state_dict())
    for model in (plain, other):
        torch.manual_seed(5)
        model(sentences([90]))[0].square().sum().backward()
    assert_all_train(plain)
    assert_same_gradients(plain, other)


@pytest.mark.parametrize("arch", ["roberta_skyformer", "roberta_informer"])
def test_a_resumed_run_draws_the_same_samples(arch):
    """fairseq tells the model the number of updates before each batch, and seeds the generator of dropout."""
    model, resumed, tokens = build(arch).train(), build(arch).train(), sentences([100, 31])
    for update in range(3):
        if update == 2:
            resumed.load_state_dict(model.state_dict())
        model.set_num_updates(update)
        torch.manual_seed(1 + update)
        logits, _ = model(tokens)
    resumed.set_num_updates(2)
    torch.manual_seed(1 + 2)
    assert torch.equal(resumed(tokens)[0], logits)


@pytest.mark.parametrize(
    "arch",
    [
        *("roberta_softmax", "roberta_linear", "roberta_transnormer_t1", "roberta_transnormer_t2"),
        *("roberta_reformer", "roberta_bigbird", "roberta_longformer"),
    ],
)
def test_initialisation_is_that_of_bert(arch):
    encoder = build_roberta(arch, encoder_embed_dim=64).encoder.sentence_encoder
    for layer in encoder.layers:
        for name, weight in layer.self_attn.named_parameters():
            if name.endswith("weight"):
                assert 0.018 < weight.std() < 0.022, name
            elif not name.startswith("urpe."):
                assert (weight == 0).all(), name
        if getattr(layer.self_attn, "urpe", None) is not None:
            torch.testing.assert_close(layer.self_attn.urpe.v.norm(), torch.tensor(1.0))
            assert layer.self_attn.urpe.theta.flatten()[0] == 1.0
    assert (encoder.embed_tokens.weight[PAD] == 0).all()


def test_they_mix_in_one_plan_and_options_reach_the_layers():
    plan = "nystromformer+transformer_ls,linformer,skyformer+informer,kernelized,reformer,bigbird+longformer"
    own = {"reformer_rounds": 3, "bigbird_random_blocks": 2}
    model = build("roberta_softmax", encoder_attention=plan, encoder_layers=6, **own).double()
    layers = [layer.self_attn for layer in model.encoder.sentence_encoder.layers]
    assert layers[0].parts[0].landmarks == 16 and layers[0].parts[1].rank == 4
    assert layers[1].E.shape == (2, 16, 256) and layers[2].parts[0].sampled.draws.shape == (2, 8)
    # 2 * floor(256 / 16) buckets; 32 blocks of 8.
    assert layers[4].rotations.shape == (2, 12, 3, 16)
    assert layers[5].parts[0].random_blocks.shape == (2, 30, 2)
    assert layers[5].parts[1].options.window == 16
    batch = sentences([50, 20])
    logits, _ = model(batch)
    torch.testing.assert_close(logits[1, :20], model(batch[1:, :20])[0][0], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", attention_names())
def test_only_attentions_with_a_causal_form_have_a_language_model(name):
    if attention_class(name).bidirectional_only:
        assert f"{name}_lm" not in MODEL_REGISTRY
        with pytest.raises(UserError, match=f"'{name}' has no causal form .*--decoder-attention"):
            build_lm("transnormer_t1", decoder_attention=f"{name}*2")
    else:
        build_lm("transnormer_t1", decoder_attention=f"{name}*2", decoder_attention_heads=1)


@pytest.mark.parametrize(
    ("name", "kind", "limit"),
    [
        ("linear", "learned", "learned positions"),
        ("linformer", "none", "positions of 'linformer' attention"),
        ("informer", "none", "positions of 'informer' attention"),
    ],
)
def test_a_sentence_longer_than_the_model_is_refused(name, kind, limit):
    model = build(f"roberta_{name}", max_positions=20, absolute_positions=kind)
    assert model.max_positions() == 20
    assert model(sentences([20], 40))[0].shape == (1, 40, 40)
    with pytest.raises(UserError, match=f"21 tokens is longer than the 20 {limit}"):
        model(sentences([21]))
