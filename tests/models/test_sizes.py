"""How many parameters the named architectures have, at the papers' sizes; every option has help."""

import pytest
import torch
from fairseq.models import MODEL_DATACLASS_REGISTRY, MODEL_REGISTRY

from tests.helpers.lm import build_lm
from tests.helpers.roberta import build_roberta

BASE = {"decoder_embed_dim": 512, "decoder_layers": 6, "decoder_attention_heads": 8}
WIKITEXT_103, WORDS = 267_744, 50_000
RELEASED = {"decoder_embed_dim": 1024, "decoder_layers": 24, "decoder_attention_heads": 8, "glu_dim": 2816}


def retnet(layers, width, inner):
    """Parameters of torchscale's RetNet with values and a GLU `inner` wide."""
    return layers * (2 * width**2 + 6 * width * inner + 2 * width) + width + 2 * WORDS * width


# All parameters and the trained ones; without a size of the table, that of the architecture's defaults.
LANGUAGE_MODELS = [
    ("transnormer_t1", WIKITEXT_103, BASE, 155_988_540, 155_988_156),
    ("transnormer_t2", WIKITEXT_103, BASE, 155_988_540, 155_988_156),
    ("linear_transformer_lm", WIKITEXT_103, BASE, 156_000_256, 156_000_256),
    ("transformer_lm", WIKITEXT_103, BASE, 156_000_256, 156_000_256),
    ("transformer_ls_lm", WIKITEXT_103, BASE, 159_461_904, 159_461_904),
    ("performer_lm", WIKITEXT_103, None, 156_000_256, 156_000_256),
    # Seven layers like those of the vanilla model.
    ("cosformer_lm", WIKITEXT_103, None, 159_152_640, 159_152_640),
    ("flash_lm", WIKITEXT_103, None, 153_517_312, 153_517_312),
    ("flash_quad_lm", WIKITEXT_103, None, 153_512_192, 153_512_192),
    ("tnn_lm", 50_264, None, 48_677_376, 48_666_624),
    # torchscale's: 2 D^2 + 3 D V of retention, 3 D V of the GLU, 2 D of norms; a norm, two embeddings.
    ("retnet_lm_base", WORDS, None, *[retnet(6, 512, 864)] * 2),
    ("retnet_lm_medium", WORDS, None, *[retnet(16, 1024, 1728)] * 2),
    ("retnet_lm_xl", WORDS, None, *[retnet(24, 2048, 3456)] * 2),
    ("retnet_lm_3b", WORDS, None, *[retnet(32, 2560, 4280)] * 2),
    ("retnet_lm_7b", WORDS, None, *[retnet(32, 4096, 6912)] * 2),
    ("retnet_lm_13b", WORDS, None, *[retnet(40, 5120, 8560)] * 2),
    ("retnet_lm_65b", WORDS, None, *[retnet(64, 8192, 13824)] * 2),
    # The released configuration's: 5 D^2 of the attention, 3 D g of the GLU, theta, two embeddings.
    ("transnormerllm", 64_000, RELEASED, *[24 * (5 + 3 * 2.75) * 1024**2 + 1024 + 2 * 64_000 * 1024] * 2),
    (
        "gated_linear_lm",
        WORDS,
        BASE,
        *[6 * (16 * 512**2 - 512 + 8 * 513 + 1024 + 128) + 512 + 2 * WORDS * 512] * 2,
    ),
]
VANILLA, SQUARE, WIDTH, LAYERS = 124_696_665, 768 * 768, 768, 12
ENCODERS = {
    "softmax": (VANILLA, VANILLA),
    "linear": (VANILLA, VANILLA),
    "transnormer_t1": (124_673_241, 124_672_473),
    "transnormer_t2": (124_673_241, 124_672_473),
    "performer": (VANILLA, VANILLA),
    "cosformer": (VANILLA, VANILLA),
    "flash": (127_117_377, 127_117_377),
    "flash_quad": (127_105_089, 127_105_089),
    "tnn": (126_400_089, 126_372_441),
    # One matrix instead of W_q and W_k, and no bias in it nor in W_v.
    "reformer": (VANILLA - LAYERS * (SQUARE + 3 * WIDTH),) * 2,
    # Random blocks are a buffer.
    "bigbird": (VANILLA, VANILLA),
    # The first token's own queries, keys and values.
    "longformer": (VANILLA + LAYERS * 3 * (SQUARE + WIDTH),) * 2,
    "nystromformer": (VANILLA, VANILLA),
    # A matrix (12 heads, 128, 512 positions) a layer.
    "linformer": (VANILLA + LAYERS * 12 * 128 * 512,) * 2,
    "skyformer": (VANILLA, VANILLA),
    "kernelized": (VANILLA, VANILLA),
    "informer": (VANILLA, VANILLA),
    "transformer_ls": (128_277_081, 128_277_081),
}
OURS = sorted(name for name, model in MODEL_REGISTRY.items() if hasattr(model, "default_plan"))


def counts(model):
    parameters = list(model.parameters())
    return sum(p.numel() for p in parameters), sum(p.numel() for p in parameters if p.requires_grad)


@pytest.mark.parametrize(("arch", "words", "size", "total", "trained"), LANGUAGE_MODELS)
def test_language_models(arch, words, size, total, trained):
    config = MODEL_DATACLASS_REGISTRY[arch]()
    with torch.device("meta"):
        model = build_lm(arch, words, **(size or {key: getattr(config, key) for key in BASE}))
    assert counts(model) == (total, trained)


@pytest.mark.parametrize("name", ENCODERS)
def test_encoders(name):
    assert counts(build_roberta(f"roberta_{name}", words=50_265, base_size=True)) == ENCODERS[name]


@pytest.mark.parametrize("arch", OURS)
def test_every_option_has_help(arch):
    for name, field in MODEL_DATACLASS_REGISTRY[arch].__dataclass_fields__.items():
        interpolated = str(field.default).startswith("${")
        assert name == "_name" or interpolated or field.metadata.get("help"), name
