"""The encoders of Reformer, BigBird and Longformer: size, options, which have no language model."""

import pytest
from fairseq.models import MODEL_DATACLASS_REGISTRY

from tests.helpers.lm import build_lm
from tests.helpers.roberta import SMALL_PARTS, build_roberta
from user_dir.errors import UserError

ARCHITECTURES = ["roberta_reformer", "roberta_bigbird", "roberta_longformer"]
architectures = pytest.mark.parametrize("arch", ARCHITECTURES)

VANILLA = 124_696_665
SQUARE, WIDTH, LAYERS = 768 * 768, 768, 12


@pytest.mark.parametrize(
    ("arch", "parameters"),
    [
        # One matrix instead of W_q and W_k, and no bias in it nor in W_v.
        ("roberta_reformer", VANILLA - LAYERS * (SQUARE + 3 * WIDTH)),
        # Random blocks are a buffer.
        ("roberta_bigbird", VANILLA),
        # The first token's own queries, keys and values.
        ("roberta_longformer", VANILLA + LAYERS * 3 * (SQUARE + WIDTH)),
    ],
)
def test_parameter_counts(arch, parameters):
    model = build_roberta(arch, words=50_265, base_size=True)
    assert sum(p.numel() for p in model.parameters() if p.requires_grad) == parameters
    assert sum(p.numel() for p in model.parameters()) == parameters


@architectures
def test_initialisation_is_that_of_bert(arch):
    model = build_roberta(arch, encoder_embed_dim=64)
    for layer in model.encoder.sentence_encoder.layers:
        for name, weight in layer.self_attn.named_parameters():
            if name.endswith("weight"):
                assert 0.018 < weight.std() < 0.022, name
            else:
                assert (weight == 0).all(), name


def test_options_reach_the_layers():
    options = {"reformer_rounds": 3, "bigbird_random_blocks": 2, **SMALL_PARTS}
    plan = "reformer,bigbird+longformer"
    model = build_roberta("roberta_reformer", encoder_attention=plan, **options)
    first, second = (layer.self_attn for layer in model.encoder.sentence_encoder.layers)
    # 2 * floor(256 / 16) buckets; 32 blocks of 8.
    assert first.rotations.shape == (2, 12, 3, 16)
    assert second.parts[0].random_blocks.shape == (2, 30, 2)
    assert second.parts[1].options.window == 16


@architectures
def test_options_have_help(arch):
    config = MODEL_DATACLASS_REGISTRY[arch].__dataclass_fields__
    for name in (*SMALL_PARTS, "reformer_rounds", "bigbird_random_blocks"):
        assert config[name].metadata["help"]


@pytest.mark.parametrize("name", ["bigbird", "longformer"])
def test_a_language_model_of_them_is_refused(name):
    with pytest.raises(UserError, match=f"'{name}' has no causal form .*--decoder-attention"):
        build_lm("transnormer_t1", decoder_attention=f"{name}*2")
    assert f"{name}_lm" not in MODEL_DATACLASS_REGISTRY
