"""The named architectures of Performer, cosFormer, FLASH and TNN: their settings, parts and resumed runs."""

import pytest
import torch
from fairseq.checkpoint_utils import load_checkpoint_to_cpu
from fairseq.models import MODEL_DATACLASS_REGISTRY

from tests.helpers.lm import build_lm, tokens
from tests.helpers.logs import losses
from tests.helpers.roberta import build_roberta
from user_dir.attention import performer
from user_dir.errors import UserError
from user_dir.modules import LearnedPositions, RMSNorm, ScaleNorm, SinusoidalPositions
from user_dir.modules.norms import LayerNorm

NAMES = ["performer", "cosformer", "flash", "flash_quad", "tnn"]
names = pytest.mark.parametrize("name", NAMES)
# Small parts, and chunks short enough for several in a sentence.
SMALL = {
    "performer_features": 8,
    "flash_key_dim": 8,
    "flash_chunk_size": 16,
    "flash_quad_key_dim": 8,
    "flash_quad_positions": 40,
    "tnn_network_dim": 8,
    "glu_dim": 24,
}


def small_lm(name, **options):
    return build_lm(f"{name}_lm", **{**SMALL, **options})


def small_roberta(name, **options):
    return build_roberta(f"roberta_{name}", **{**SMALL, **options})


@names
def test_architectures_have_the_papers_settings(name):
    lm, roberta = (MODEL_DATACLASS_REGISTRY[arch]() for arch in (f"{name}_lm", f"roberta_{name}"))
    layers, heads = {"performer": (6, 8), "cosformer": (7, 1), "tnn": (7, 1)}.get(name, (10, 1))
    assert (lm.decoder_layers, lm.decoder_attention_heads) == (layers, heads)
    layers = 24 if name.startswith("flash") else 12
    assert roberta.encoder_layers == layers
    for config in (lm, roberta):
        assert config.performer_features == 64
        assert (config.flash_chunk_size, config.flash_key_dim, config.flash_quad_positions) == (64, 128, 512)
        assert (config.tnn_decay, config.tnn_network_dim, config.tnn_network_layers) == (0.99, 64, 6)
        assert config.cosformer_length is None


@pytest.mark.parametrize("paper", [False, True], ids=["default", "paper"])
def test_performer_is_that_of_the_papers_on_request_only(paper):
    """By default features are kept for 1,000 updates; --performer-paper draws them in every training step."""
    options = {"performer_paper": True} if paper else {}
    attention = small_lm("performer", **options).decoder.layers[0].self_attn
    assert attention.options.paper is paper
    assert (performer.EPSILON, performer.PAPER_FLOOR) == (1e-4, 1e-2)
    x, first = torch.randn(5, 1, attention.embed_dim), attention.eval_proj.clone()
    attention.train().set_num_updates(1)
    assert torch.equal(attention(x)[0], attention(x)[0]) is not paper
    attention.set_num_updates(1000)
    assert torch.equal(attention.eval_proj, first) is paper


def test_norms_and_positions():
    flash = small_lm("flash", decoder_layers=1).decoder
    assert isinstance(flash.layers[0].self_attn_layer_norm, ScaleNorm)
    assert isinstance(flash.layer_norm, LayerNorm)
    assert isinstance(flash.embed_positions, SinusoidalPositions)
    encoder = small_roberta("flash").encoder.sentence_encoder
    assert isinstance(encoder.layers[0].self_attn_layer_norm, LayerNorm) and encoder.layer_norm is None
    assert isinstance(encoder.embed_positions, LearnedPositions)
    tnn = small_lm("tnn").decoder
    assert isinstance(tnn.layers[0].self_attn_layer_norm, RMSNorm) and isinstance(tnn.layer_norm, LayerNorm)
    assert tnn.embed_positions is None and tnn.layers[0].pre_norm
    encoder = small_roberta("tnn").encoder.sentence_encoder
    assert encoder.embed_positions is None and not encoder.layers[0].pre_norm
    assert isinstance(encoder.layers[0].final_layer_norm, RMSNorm)


def test_absolute_positions_are_an_option():
    kinds = {"sinusoidal": SinusoidalPositions, "learned": LearnedPositions, "none": type(None)}
    for kind, expected in kinds.items():
        assert isinstance(small_lm("tnn", absolute_positions=kind).decoder.embed_positions, expected)
    learned = small_roberta("tnn", absolute_positions="learned").encoder.sentence_encoder
    assert isinstance(learned.embed_positions, LearnedPositions)
    with pytest.raises(
        UserError, match="--absolute-positions is 'rotary'; choose one of sinusoidal, learned"
    ):
        small_lm("tnn", absolute_positions="rotary")
    with pytest.raises(UserError, match="'sinusoidal'; choose one of learned, none"):
        small_roberta("tnn", absolute_positions="sinusoidal")


@pytest.mark.parametrize("name", ["flash", "flash_quad"])
def test_checkpoints_of_the_authors_fork_load(name):
    """The norm inside the unit, FLASH-quad's shorter names, and the two vectors without a gradient."""
    rows = tokens(2, 40)
    for build, stack in ((small_lm, "decoder"), (small_roberta, "encoder.sentence_encoder")):
        model, other = build(name), build(name)
        units = [f"{stack}.layers.{i}.self_attn" for i in range(2)]
        theirs = {f"{unit}.{vector}": torch.randn(1, 8) for unit in units for vector in "ab"}
        for key, value in model.state_dict().items():
            key = key.replace("self_attn_layer_norm.", "self_attn.norm.")
            theirs[key.replace("quad_", "") if name == "flash_quad" else key] = value
        assert any("quad_" in key for key in theirs) == (name == "flash")
        other.load_state_dict(theirs)
        assert torch.equal(other(rows)[0], model(rows)[0])


def test_models_pass_the_number_of_updates_on():
    model = small_lm("performer", performer_redraw=10)
    start = model.decoder.layers[0].self_attn.eval_proj.clone()
    model.set_num_updates(9)
    assert torch.equal(model.decoder.layers[0].self_attn.eval_proj, start)
    model.set_num_updates(10)
    first, second = (layer.self_attn.eval_proj for layer in model.decoder.layers)
    assert not torch.equal(first, start) and not torch.equal(first, second)


@pytest.mark.parametrize("name", ["flash", "flash_quad"])
def test_a_gated_unit_is_a_whole_layer(name):
    model = build_lm("transnormer_t1", decoder_attention=f"diag,{name}", **SMALL)
    first, second = model.decoder.layers
    assert hasattr(first, "final_layer_norm") and not hasattr(second, "final_layer_norm")
    with pytest.raises(UserError, match=f"'{name}' is a whole layer.* write it alone"):
        build_lm("transnormer_t1", decoder_attention=f"diag,norm+{name}")


@pytest.mark.slow
def test_a_resumed_performer_trains_as_if_never_stopped(commands, tmp_path):
    """With redraws before and after the checkpoint it resumes from."""
    options = ("--performer-features", "8", "--performer-redraw", "3", "--save-interval-updates", "4")
    whole = commands.train(tmp_path, *options, "--max-update", "8", arch="performer_lm")
    straight = losses(commands.run(*whole))
    checkpoint = tmp_path / "checkpoint_1_4.pt"
    again = ("--restore-file", str(checkpoint), "--max-update", "8")
    resumed = losses(commands.run(*commands.train(tmp_path / "again", *options, *again, arch="performer_lm")))
    assert sorted(resumed) == [5, 6, 7, 8]
    assert resumed == {update: straight[update] for update in resumed}
    state = load_checkpoint_to_cpu(str(checkpoint))["model"]
    assert int(state["decoder.layers.0.self_attn.redraws"]) == 1
