"""Options that do nothing with the attentions, networks, norms, positions or data of a model are noted."""

from argparse import Namespace

import pytest
import torch
from fairseq import options

from tests.helpers.lra import write_lra
from tests.helpers.mechanisms import MECHANISMS, WITH_DROPOUT, all_forms, build
from user_dir.checks.same_settings import check_same_settings
from user_dir.checks.tasks import FITS
from user_dir.errors import UserError
from user_dir.idle_options import WITHOUT_HEADS, WITHOUT_WEIGHTS


def test_the_attentions_without_weights_are_those_without_dropout():
    assert {one.name for one in MECHANISMS.values()} - {*WITH_DROPOUT} == WITHOUT_WEIGHTS


@all_forms
@torch.no_grad()
def test_heads_change_all_other_attentions(key, causal):
    modules = [build(key, causal, heads=heads, longest=64) for heads in (1, 2)]
    shapes = [{name: x.shape for name, x in one.state_dict().items()} for one in modules]
    same = shapes[0] == shapes[1]
    if same:
        modules[1].load_state_dict(modules[0].state_dict())
        x = torch.randn(64, 2, 12)
        same = torch.equal(*(module(x)[0] for module in modules))
    assert same == (MECHANISMS[key].name in WITHOUT_HEADS)


def test_options_of_an_attention_that_no_layer_has_are_noted(commands, caplog):
    def noted(*extra):
        caplog.clear()
        words = commands.train(commands.data, *extra)[3:]
        options.parse_args_and_arch(options.get_training_parser(), words)
        return [record.getMessage() for record in caplog.records if "does nothing" in record.getMessage()]

    [said] = noted("--lln-a", "2", "--diag-block-size=8")
    assert said == "--lln-a does nothing: no layer of the model has lln attention"
    assert noted("--lln-a", "2", "--decoder-attention", "lln") == []
    [said] = noted("--decoder-attention", "lln", "--norm-feature-map", "elu")
    assert said.startswith("--norm-feature-map does nothing")


GATED = "the layers are gated units, without a feed-forward network"
FLASH = "--decoder-attention-heads 1 --decoder-attention flash"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--decoder-ffn-embed-dim 64", "the layers have a GLU (--decoder-ffn glu)"),
        ("--activation-fn gelu", "the layers have a GLU (--decoder-ffn glu)"),
        ("--glu-dim 64 --decoder-ffn ffn", "the layers have an FFN (--decoder-ffn ffn)"),
        ("--adaptive-input-cutoff 5,10", "it needs --adaptive-input"),
        ("--tie-adaptive-proj", "it needs --tie-adaptive-weights"),
        (
            "--decoder-output-bias learned --adaptive-softmax-cutoff 5",
            "--adaptive-softmax-cutoff overrules it",
        ),
        ("--absolute-positions none --decoder-learned-pos", "--decoder-learned-pos overrules it"),
        ("--decoder-ffn-embed-dim 64 --decoder-ffn ffn", None),
        ("--glu-dim 64 --activation-dropout 0.1", None),
        (f"--glu-dim 64 {FLASH}", GATED),
        (f"--decoder-ffn-embed-dim 64 {FLASH},flash_quad", GATED),
        (f"--activation-fn gelu {FLASH}", GATED),
        (f"--activation-dropout 0.1 {FLASH}_quad", GATED),
        ("--activation-fn gelu --decoder-ffn ffn --decoder-attention flash,diag", None),
        (f"--activation-dropout 0 {FLASH}", None),
    ],
)
def test_options_of_parts_that_a_model_lacks_are_noted(words, said, commands, caplog):
    arguments = [*commands.train(commands.data)[3:], *words.split()]
    options.parse_args_and_arch(options.get_training_parser(), arguments)
    found = [record.getMessage() for record in caplog.records if "does nothing" in record.getMessage()]
    assert found == ([f"{words.split()[0]} does nothing: {said}"] if said else [])


WORDS = "a model of pixels has no vocabulary"
PIXELS = "the data have no pixels"


@pytest.mark.parametrize(
    ("arch", "words", "said"),
    [
        ("pixel_linear", "--decoder-output-bias learned", WORDS),
        ("pixel_linear", "--adaptive-softmax-cutoff 5", WORDS),
        ("pixel_linear", "--adaptive-softmax-dropout 0.1", WORDS),
        ("pixel_linear", "--mixtures 3 --pixel-head categorical", "it needs --pixel-head logistic"),
        ("pixel_linear", "--mixtures 3", None),
        ("lra_skyformer", "listops --pixel-input linear", PIXELS),
        ("lra_skyformer", "listops --pixel-mean 9", PIXELS),
        ("lra_skyformer", "listops --mask-zero-pixels", PIXELS),
        ("lra_skyformer", "listops --vocabulary-size 32", None),
        ("lra_skyformer", "image --pixel-std 9", "it needs --pixel-input linear"),
        ("lra_skyformer", "image --mask-zero-pixels --vocabulary-size 256", None),
        (
            "lra_skyformer",
            "image --vocabulary-size 256 --pixel-input linear",
            "pixels have no table (--pixel-input linear)",
        ),
        ("lra_skyformer", "image --pixel-mean 9 --pixel-input linear", None),
    ],
)
def test_options_without_words_or_pixels_are_noted(arch, words, said, caplog, tmp_path):
    task, criterion, data, given = "pixels", "pixel_likelihood", tmp_path, words.split()
    if arch == "lra_skyformer":
        task, criterion, data = "lra", "lra", write_lra(tmp_path / "data", given.pop(0), longest=8)
    arguments = [str(data), "--task", task, "--criterion", criterion, "--arch", arch, "--lr", "0.1", *given]
    options.parse_args_and_arch(options.get_training_parser(), arguments)
    found = [record.getMessage() for record in caplog.records if "does nothing" in record.getMessage()]
    assert found == ([f"{given[0]} does nothing: {said}"] if said else [])


WEIGHTS = "no attention of the model forms weights to drop"
HEADS = "no attention of the model has heads"
PERFORMER = "--decoder-attention performer"
NO_FINAL_NORM = "post-norm layers have no norm after them without --decoder-final-norm"
NOT_SCALED = "embeddings beside joined positions are not scaled"
WHOLE = "an encoder pools the whole sequence"


@pytest.mark.parametrize(
    ("arch", "words", "said"),
    [
        ("linear_transformer_lm", "--attention-dropout 0.1", WEIGHTS),
        ("linear_transformer_lm", "--attention-dropout 0", None),
        ("linear_transformer_lm", "--attention-dropout 0.1 --decoder-attention elu*5,softmax", None),
        ("linear_transformer_lm", "--attention-dropout 0.1 --decoder-attention elu*5,diag+norm", None),
        ("transnormer_t1", "--attention-dropout 0.1", None),
        ("roberta_tnn", "--attention-dropout 0.1", WEIGHTS),
        ("vit", "--attention-dropout 0.1 --encoder-attention lln", WEIGHTS),
        ("flash_lm", "--decoder-attention-heads 4", HEADS),
        ("flash_lm", "--decoder-attention-heads 1", None),
        ("flash_lm", "--decoder-attention-heads 4 --decoder-attention tnn*9,norm", None),
        ("roberta_tnn", "--encoder-attention-heads 4", HEADS),
        ("roberta_linear", "--no-encoder-final-norm", "it needs --encoder-normalize-before"),
        ("roberta_linear", "--no-encoder-final-norm --encoder-normalize-before", None),
        ("vit", "--no-encoder-final-norm", None),
        ("transformer_ls_lm", "--no-decoder-final-norm", NO_FINAL_NORM),
        ("pixel_linear", "--no-decoder-final-norm", None),  # a final norm is its default
        ("transnormer_t1", "--no-decoder-final-norm", None),
        (
            "transnormer_t1",
            f"--performer-redraw 5 --performer-paper {PERFORMER}",
            "--performer-paper overrules it",
        ),
        ("transnormer_t1", f"--performer-redraw 5 {PERFORMER}", None),
        ("lln_lm", "--lln-a 0.2 --lln-alpha 1", "--lln-alpha overrules it"),
        ("lln_lm", "--lln-a 0.2", None),
        ("lln_diag_lm", "--lln-diag-b 0.2 --lln-diag-alpha 1", "--lln-diag-alpha overrules it"),
        (
            "roberta_lln",
            "--lln-diag-b 0.2 --lln-diag-alpha 1",
            "no layer of the model has lln_diag attention",
        ),
        ("roberta_linear", "--transformer-ls-chunk 8 --encoder-attention transformer_ls", WHOLE),
        ("transformer_ls_lm", "--transformer-ls-chunk 8", None),
        ("pixel_linear", "--no-scale-embedding", NOT_SCALED),
        ("pixel_linear", "--no-scale-embedding --absolute-positions learned", None),
        ("transnormer_t1", "--no-scale-embedding --absolute-positions joined", NOT_SCALED),
        (
            "transnormer_t1",
            "--no-scale-embedding --absolute-positions joined --no-token-positional-embeddings",
            None,
        ),
    ],
)
def test_options_without_effect_are_noted(arch, words, said, caplog):
    kinds = {"roberta": "masked_lm", "vit": "image_classification", "pixel": "pixels"}
    task = kinds.get(arch.partition("_")[0], "language_modeling")
    given = ["data", "--task", task, "--criterion", FITS[task][1][0], "--arch", arch, "--lr", "0.1"]
    given += words.split()
    options.parse_args_and_arch(options.get_training_parser(), given)
    flag = words.split()[0]
    found = [text for text in caplog.messages if text.startswith(f"{flag} does nothing")]
    assert found == ([f"{flag} does nothing: {said}"] if said else [])


def test_weights_may_start_a_model_with_other_options_that_do_nothing():
    model = {"attention_backend": "auto", "_name": "roberta_transnormer_t1", "encoder_ffn": "glu"}
    model |= {"encoder_ffn_embed_dim": 3072, "pooler_activation_fn": "tanh", "activation_fn": "gelu"}

    def check(**changes):
        groups = ({"model": Namespace(**one), "task": Namespace()} for one in (model, {**model, **changes}))
        check_same_settings("x.pt", *groups, resumes=False)

    check(encoder_ffn_embed_dim=64)
    with pytest.raises(UserError, match="activation_fn is 'gelu', not 'relu'"):
        check(activation_fn="relu")  # of the masked-LM head
    with pytest.raises(UserError, match="encoder_ffn is 'glu', not 'ffn'"):
        check(encoder_ffn="ffn", encoder_ffn_embed_dim=64)
    model["encoder_ffn"] = "ffn"
    with pytest.raises(UserError, match="encoder_ffn_embed_dim is 3072, not 64"):
        check(encoder_ffn_embed_dim=64)
