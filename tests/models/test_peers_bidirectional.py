"""The encoders of landmarks, samples and long-short attention: size, training, options."""

import pytest
import torch
from fairseq.models import MODEL_DATACLASS_REGISTRY

from tests.helpers.lm import build_lm
from tests.helpers.roberta import SMALL_PARTS, build_roberta, sentences
from user_dir.errors import UserError

VANILLA = 124_696_665
NAMES = ["nystromformer", "linformer", "skyformer", "kernelized", "informer", "transformer_ls"]
DRAWING = ["skyformer", "informer"]
architectures = pytest.mark.parametrize("arch", [f"roberta_{name}" for name in NAMES])


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("nystromformer", VANILLA),
        # A matrix (12 heads, 128, 512 positions) a layer.
        ("linformer", VANILLA + 12 * 12 * 128 * 512),
        ("skyformer", VANILLA),
        ("kernelized", VANILLA),
        ("informer", VANILLA),
        ("transformer_ls", 128_277_081),
    ],
)
def test_parameter_counts(name, parameters):
    model = build_roberta(f"roberta_{name}", words=50_265, base_size=True)
    assert sum(p.numel() for p in model.parameters()) == parameters
    assert sum(p.numel() for p in model.parameters() if p.requires_grad) == parameters


@pytest.mark.parametrize("name", DRAWING)
def test_a_resumed_run_draws_the_same_samples(name):
    """fairseq tells the model the number of updates before each batch, and seeds the generator of dropout."""
    model = build_roberta(f"roberta_{name}", **SMALL_PARTS).train()
    tokens = sentences([100, 31])
    resumed = build_roberta(f"roberta_{name}", **SMALL_PARTS).train()
    for update in range(3):
        if update == 2:
            resumed.load_state_dict(model.state_dict())
        model.set_num_updates(update)
        torch.manual_seed(1 + update)
        logits, _ = model(tokens)
    resumed.set_num_updates(2)
    torch.manual_seed(1 + 2)
    assert torch.equal(resumed(tokens)[0], logits)


@pytest.mark.parametrize("name", NAMES)
def test_checkpointed_activations_give_the_same_gradients(name):
    """The recomputation draws the samples of the first pass."""
    plain = build_roberta(f"roberta_{name}", **SMALL_PARTS).train()
    other = build_roberta(f"roberta_{name}", checkpoint_activations=True, **SMALL_PARTS).train()
    other.load_state_dict(plain.state_dict())
    for model in (plain, other):
        torch.manual_seed(5)
        model(sentences([90]))[0].square().sum().backward()
    for a, b in zip(plain.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)


def test_they_mix_in_one_plan():
    plan = "nystromformer+transformer_ls,linformer,skyformer+informer,kernelized"
    model = build_roberta("roberta_softmax", encoder_attention=plan, encoder_layers=4, **SMALL_PARTS).double()
    layers = [layer.self_attn for layer in model.encoder.sentence_encoder.layers]
    assert layers[0].parts[0].landmarks == 16 and layers[0].parts[1].rank == 4
    assert layers[1].E.shape == (2, 16, 256) and layers[2].parts[0].sampled.draws.shape == (2, 8)
    batch = sentences([50, 20])
    logits, _ = model(batch)
    torch.testing.assert_close(logits[1, :20], model(batch[1:, :20])[0][0], rtol=1e-9, atol=1e-9)


@architectures
def test_options_have_help(arch):
    config = MODEL_DATACLASS_REGISTRY[arch].__dataclass_fields__
    names = (*SMALL_PARTS, "nystromformer_conv_width", "linformer_projection", "transformer_ls_window")
    assert all(config[name].metadata["help"] for name in names)


@pytest.mark.parametrize("name", NAMES)
def test_only_long_short_attention_has_a_causal_form(name):
    lm = f"{name}_lm"
    assert (lm in MODEL_DATACLASS_REGISTRY) == (name == "transformer_ls")
    if lm not in MODEL_DATACLASS_REGISTRY:
        with pytest.raises(UserError, match=f"'{name}' has no causal form .*--decoder-attention"):
            build_lm("transnormer_t1", decoder_attention=f"{name}*2")


@pytest.mark.parametrize("name", ["linformer", "informer"])
def test_a_sentence_longer_than_the_model_is_refused(name):
    model = build_roberta(f"roberta_{name}", max_positions=20, absolute_positions="none", **SMALL_PARTS)
    assert model(sentences([20], 40))[0].shape == (1, 40, 40)
    with pytest.raises(UserError, match=f"21 tokens is longer than the 20 positions of '{name}' attention"):
        model(sentences([21]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"encoder_attention": "linformer*2", "linformer_rank": 257},
            "--linformer-rank is 257; .* from 1 to 256",
        ),
        (
            {"encoder_attention": "skyformer*2", "skyformer_landmarks": 3},
            "--skyformer-landmarks is 3; .* even",
        ),
        ({"nystromformer_landmarks": 0}, "--nystromformer-landmarks is 0; it must be a number from 1"),
        ({"nystromformer_conv_width": 2}, "--nystromformer-conv-width is 2; it must be an odd number"),
    ],
)
def test_user_errors(options, message):
    with pytest.raises(UserError, match=message):
        build_roberta("roberta_nystromformer", **options)
