"""Words of the layer plan that stand for a plan and for options of its mechanisms."""

import pytest
from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf

from tests.helpers.build import build_model
from tests.helpers.images import SMALL_VIT, build_vit
from tests.helpers.lm import build_lm
from tests.helpers.lra import lra_task
from tests.helpers.roberta import build_roberta
from user_dir.attention.diag import DiagAttention
from user_dir.attention.norm import NormAttention
from user_dir.errors import UserError
from user_dir.models.layer_plan import parse_layer_plan
from user_dir.tasks.image_data import ImageShape

T1, T2 = ("relu", "elu"), ("softmax", "1+elu")


def chosen(model):
    """The activation of DiagAttention and the feature map of NormAttention, None without it."""
    found = {type(part): part.options for part in model.modules() if hasattr(part, "options")}
    diag, norm = found.get(DiagAttention), found.get(NormAttention)
    return diag and diag.activation, norm and norm.feature_map


def built(kind: str, **given):
    if kind == "vit":
        return build_vit(ImageShape(17, 8, 6, 3), **SMALL_VIT, **given)
    if kind.startswith("lra"):
        return build_model(kind, lra_task("text", "skyformer"), **given)
    return (build_roberta if kind.startswith("roberta") else build_lm)(kind, **given)


@pytest.mark.parametrize(("word", "meant"), [("transnormer_t1", T1), ("transnormer_t2", T2)])
@pytest.mark.parametrize(
    ("kind", "side"),
    [
        ("linear_transformer_lm", "decoder"),
        ("transnormer_t1", "decoder"),
        ("transnormer_t2", "decoder"),
        ("roberta_softmax", "encoder"),
        ("lra_skyformer", "encoder"),
        ("lra_state_space", "encoder"),
        ("vit", "encoder"),
    ],
)
def test_a_word_is_a_plan_with_options(kind, side, word, meant):
    assert chosen(built(kind, **{f"{side}_attention": word})) == meant


@pytest.mark.parametrize(
    ("arch", "given", "meant"),
    [
        ("transnormer_t1", {}, T1),
        ("transnormer_t2", {}, T2),
        ("transnormer_t2", {"decoder_attention": "norm*2"}, (None, "1+elu")),
        ("lln_lm", {"decoder_attention": "diag,norm"}, T1),
        ("transnormer_t2", {"diag_activation": "relu"}, ("relu", "1+elu")),
        ("lln_lm", {"decoder_attention": "transnormer_t2", "norm_feature_map": "elu"}, ("softmax", "elu")),
        ("transnormer_t2", {"decoder_attention": "transnormer_t1"}, T1),
    ],
)
def test_what_is_given_wins_then_the_plan_then_the_architecture(arch, given, meant):
    assert chosen(build_lm(arch, **given)) == meant


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["--arch", "transnormer_t2"], T2),
        (["--arch", "lln_lm"], T1),
        (["--arch", "lln_lm", "--decoder-attention", "transnormer_t2"], T2),
        (["--arch", "transnormer_t1", "--norm-feature-map", "1+elu"], ("relu", "1+elu")),
    ],
)
def test_the_configuration_of_a_training_holds_what_is_meant(words, meant):
    parser = options.get_training_parser()
    cfg = convert_namespace_to_omegaconf(
        options.parse_args_and_arch(parser, ["data", "--task", "language_modeling", "--lr", "1", *words])
    )
    assert (cfg.model.diag_activation, cfg.model.norm_feature_map) == meant


@pytest.mark.parametrize("layers", [1, 2, 5])
def test_the_first_half_is_diag(layers):
    plan = parse_layer_plan("transnormer_t2", layers, "--encoder-attention", causal=False)
    assert plan == [("diag",)] * (layers // 2) + [("norm",)] * (layers - layers // 2)


@pytest.mark.parametrize(
    ("plan", "sentence"),
    [
        ("transnormer_t1,norm", "'transnormer_t1' is a plan for all layers at character 1 "),
        ("norm,transnormer_t1", "at character 6 .*; write it alone"),
        ("transnormer_t1*2", "write it alone"),
        ("transnormer_t3", "did you mean transnormer_t[12]"),
        ("nrom*2", "did you mean norm"),
    ],
)
def test_what_is_no_plan(plan, sentence):
    with pytest.raises(UserError, match=sentence):
        parse_layer_plan(plan, 2, "--decoder-attention", causal=True)
