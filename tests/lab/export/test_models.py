"""Models of all kinds, exported and loaded by transformers: the same logits and the same continuations."""

import json
import math
from types import SimpleNamespace

import pytest
import torch
from fairseq.models import MODEL_DATACLASS_REGISTRY, MODEL_REGISTRY

from lab.errors import UserError
from lab.export.exported import LoadedModel, model_files
from tests.helpers import lm, roberta
from tests.helpers.prepared import write_files

PAD = 1
OTHER = {
    "lln_diag_combination": "learnable_scale",
    "lln_diag_block_size": 5,
    "decoder_output_bias": "learned",
    "no_share_decoder_input_output_embed": True,
    "absolute_positions": "learned",
    "decoder_norm_position": "post",
    "decoder_norm": "scalenorm",
    "no_scale_embedding": True,
}
MODELS = {
    "t1": ("transnormer_t1", {}),
    "t2": ("transnormer_t2", {}),
    "elu": ("linear_transformer_lm", {}),
    "lln": ("lln_lm", {}),
    "lln_diag": ("lln_diag_lm", {}),
    "lln_diag, post-norm": ("lln_diag_lm", OTHER),
    "softmax and a sum": (
        "transnormer_t1",
        {"decoder_attention": "softmax,diag+lln", "lln_alpha": 0.7, "lln_beta": 1.2},
    ),
    "diag without positions": ("transnormer_t2", {"diag_positions": "none", "norm_positions": "none"}),
    "retention": ("retnet_lm", {"decoder_attention": "retention+elu,retention", "retention_value_dim": 36}),
    "lightning": ("transnormerllm", {"decoder_layers": 3, "decoder_layers_to_keep": "0,2"}),
    "gated": ("gated_linear_lm", {"share_decoder_input_output_embed": True}),
    "roberta t1": ("roberta_transnormer_t1", {}),
    "roberta t2": ("roberta_transnormer_t2", {"encoder_normalize_before": True}),
    "roberta elu": ("roberta_linear", {}),
    "roberta lln": ("roberta_lln", {"untie_weights_roberta": True}),
    "roberta lln_diag": ("roberta_lln_diag", {"lln_diag_combination": "learnable_ratio"}),
    "roberta softmax": ("roberta_softmax", {}),
}


def build(architecture: str, **options) -> LoadedModel:
    """A model with random weights, also where training starts from zeros and ones."""
    kind = "MaskedLM" if architecture.startswith("roberta") else "CausalLM"
    config = MODEL_DATACLASS_REGISTRY[architecture]()
    small = lm.SMALL if kind == "CausalLM" else roberta.SMALL
    for name, value in {**small, **options}.items():
        assert hasattr(config, name), name
        setattr(config, name, value)
    words = lm.dictionary(40)
    if kind != "CausalLM":
        words.add_symbol("<mask>")
    task = SimpleNamespace(source_dictionary=words, target_dictionary=words, max_positions=lambda: 512)
    model = MODEL_REGISTRY[architecture].build_model(config, task).eval()
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1 and "urpe" not in name:
            parameter.data += 0.1 * torch.randn_like(parameter)
    for name, buffer in model.named_buffers():
        if name.endswith("sigma"):
            buffer.copy_(torch.tensor([1.1, 0.8]))
    return LoadedModel(model, config, words, kind)


def test_each_of_two_mechanisms_keeps_its_constants():
    source = build("lln_lm", decoder_attention="lln,lln_diag", lln_a=0.3, lln_b=-0.1, lln_diag_a=0.2)
    options = json.loads(model_files(source)["config.json"])["attention_options"]
    assert (options["lln"]["a"], options["lln"]["b"]) == (0.3, -0.1)
    assert (options["lln_diag"]["a"], options["lln_diag"]["b"]) == (0.2, 0.0)


@pytest.mark.parametrize(("options", "scale"), [({}, math.sqrt(24)), ({"no_scale_embedding": True}, 1.0)])
def test_the_scale_of_embeddings_is_the_models(options, scale):
    config = json.loads(model_files(build("transnormer_t1", **options))["config.json"])
    assert config["embedding_scale"] == pytest.approx(scale)


@pytest.mark.parametrize(
    ("architecture", "options", "expected"),
    [
        ("transnormer_t1", {}, {"output_bias": False, "pre_norm": True, "causal": True}),
        ("transnormer_t1", {"decoder_output_bias": "learned"}, {"output_bias": True}),
        (
            "transnormer_t1",
            {"decoder_norm": "rmsnorm", "decoder_final_norm": "layernorm"},
            {"norm": "rmsnorm", "final_norm": "layernorm"},
        ),
        (
            "transnormer_t1",
            {"decoder_ffn": "glu", "glu_activation": "relu", "glu_dim": 20, "activation_fn": "gelu"},
            {"feed_forward": "glu", "feed_forward_size": 20, "feed_forward_activation": "relu"},
        ),
        (
            "lln_lm",
            {"decoder_ffn": "ffn", "decoder_ffn_embed_dim": 28, "activation_fn": "gelu"},
            {"feed_forward": "ffn", "feed_forward_size": 28, "feed_forward_activation": "gelu"},
        ),
        (
            "transnormer_t1",
            {"dropout": 0.1, "attention_dropout": 0.2, "activation_dropout": 0.3},
            {"dropout": 0.1, "attention_dropout": 0.2, "activation_dropout": 0.3},
        ),
        ("roberta_lln", {}, {"output_bias": False, "causal": False, "embedding_scale": 1.0}),
    ],
)
def test_the_configuration_has_the_options_of_the_model(architecture, options, expected):
    config = json.loads(model_files(build(architecture, **options))["config.json"])
    assert {key: config[key] for key in expected} == expected


def test_options_that_the_configuration_lacks_are_those_of_the_model():
    """Checkpoints of early versions lack settings that follow from the layer plan."""
    source = build("transnormer_t2")
    source.cfg.diag_activation = source.cfg.norm_feature_map = None
    options = json.loads(model_files(source)["config.json"])["attention_options"]
    assert (options["diag"]["activation"], options["norm"]["feature_map"]) == ("softmax", "1+elu")


def padded(rows: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens with padding on either side, and where they are real."""
    tokens, real = lm.tokens(rows, length), torch.ones(rows, length, dtype=torch.bool)
    for row in range(rows):
        if row % 3 == 1:
            real[row, : row % length] = False
        elif row % 3 == 2:
            real[row, length - row % length :] = False
    return tokens.masked_fill(~real, PAD), real


def continued(model, prompts: torch.Tensor, count: int) -> torch.Tensor:
    """The tokens that fairseq's model appends greedily, reading the whole row for each."""
    tokens = prompts
    with torch.no_grad():
        for _ in range(count):
            logits = model(tokens)[0][:, -1]
            logits[:, PAD] = -torch.inf
            tokens = torch.cat([tokens, logits.argmax(-1, keepdim=True)], 1)
    return tokens[:, prompts.shape[1] :]


@pytest.mark.slow
def test_logits_and_continuations(transformers_answers, tmp_path):
    tokens, real = padded(5, 75)
    prompts, prompt_real = lm.tokens(100, 12, seed=1), torch.ones(100, 12, dtype=torch.bool)
    for row in range(100):
        prompt_real[row, : row % 9] = False
    prompts = prompts.masked_fill(~prompt_real, PAD)
    asked = {
        "CausalLM": {"prompts": prompts, "prompt_mask": prompt_real, "count": 12},
        "MaskedLM": {"too_long": lm.tokens(1, 1000)},
    }
    questions, expected = {}, {}
    for name, (architecture, options) in MODELS.items():
        source = build(architecture, **options)
        write_files(tmp_path / name, model_files(source))
        labels = tokens.masked_fill(~real, -100)
        questions[name] = {"tokens": tokens, "mask": real, "labels": labels, **asked[source.kind]}
        with torch.no_grad():
            continuations = continued(source.model, prompts, 12) if source.kind == "CausalLM" else None
            expected[name] = source.model(tokens)[0], continuations
    answers = transformers_answers(tmp_path, questions)
    for name, (logits, continuations) in expected.items():
        found = answers[name]
        for key in ("logits", "of embeddings", "last", "two words more"):
            torch.testing.assert_close(found[key][real], logits[real], rtol=0, atol=1e-5, msg=name)
        assert len(found["hidden states"]) == 3, name  # of two layers
        assert found["attentions"].startswith("output_attentions is not supported"), name
        assert found["gradients"].abs().max() > 0, name
        torch.testing.assert_close(found["checkpointed"], found["gradients"], rtol=1e-4, atol=1e-6, msg=name)
        if continuations is not None:
            assert torch.equal(found["state"], continuations), name
            assert torch.equal(found["no state"], continuations[:4]), name
            assert torch.equal(found["embeddings"], continuations[:4]), name
            assert torch.equal(found["embeddings, no state"], continuations[:4]), name
            assert torch.equal(found["two calls"], continuations[:1]), name
            assert found["beams"].shape == (1, 5), name
        else:
            assert "learned" in found["refusal"] and "positions" in found["refusal"], name


@pytest.mark.slow
def test_an_attention_of_ones_own(own_attention, transformers_answers, tmp_path):
    source = build("transnormer_t1", decoder_attention="mine")
    write_files(tmp_path / "own", model_files(source))
    tokens, real = padded(3, 75)
    asked = {"tokens": tokens, "mask": real, "prompts": tokens[:1], "prompt_mask": real[:1], "count": 2}
    found = transformers_answers(tmp_path, {"own": asked})["own"]
    with torch.no_grad():
        torch.testing.assert_close(found["logits"][real], source.model(tokens)[0][real], rtol=0, atol=1e-5)


@pytest.mark.slow
def test_classification_head(transformers_answers, tmp_path):
    source = build("roberta_lln_diag")
    source.model.register_classification_head("topic", 3)
    write_files(tmp_path / "topic", model_files(source, "topic"))
    tokens, real = lm.tokens(4, 20), torch.ones(4, 20, dtype=torch.bool)
    real[1, 15:] = False
    tokens = tokens.masked_fill(~real, PAD)
    moved, moved_real = tokens.clone(), real.clone()
    moved[1], moved_real[1] = tokens[1].roll(5), real[1].roll(5)  # the same with padding on the left
    with torch.no_grad():
        features = source.model.encoder(tokens, features_only=True)[0]
        expected = source.model.classification_heads["topic"](features)
    questions = {"topic": {"tokens": moved, "mask": moved_real, "classes": 5}}
    found = transformers_answers(tmp_path, questions)["topic"]
    torch.testing.assert_close(found["logits"], expected, rtol=0, atol=1e-5)
    for x in found["new head"].values():  # begins as any linear map does
        assert len(x) == 5 and x.std() > 0 and x.abs().max() <= features.shape[2] ** -0.5


@pytest.mark.parametrize(
    ("architecture", "options", "message"),
    [
        ("performer_lm", {}, "'performer' attention cannot be exported; choose from softmax, elu"),
        ("lln_lm", {"lln_statistics": "batch"}, "statistics 'batch' depends on the rest of the batch"),
        ("roberta_linear", {"encoder_norm": "batchnorm"}, "--encoder-norm batchnorm cannot be exported"),
        ("transnormer_t1", {"adaptive_softmax_cutoff": "20"}, "adaptive softmax cannot be exported"),
    ],
)
def test_what_cannot_be_exported(architecture, options, message):
    with pytest.raises(UserError, match=message):
        model_files(build(architecture, **options))


def test_head_that_is_not_there():
    source = build("roberta_linear")
    with pytest.raises(UserError, match="has no classification head 'topic'; those it has: none"):
        model_files(source, "topic")
