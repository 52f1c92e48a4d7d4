"""The two Long Range Arena presets, each an architecture; their tasks' settings live in configs/."""

from conventions.plans import everywhere

from ..architectures import T1, Architecture
from .config import LRAConfig
from .model import LRAModel

SIZE = {
    "encoder_layers": 2,
    "encoder_embed_dim": 64,
    "encoder_attention_heads": 2,
    "encoder_ffn_embed_dim": 128,
}
# Settings of the approximate methods in Skyformer's comparison: 128 features, else the defaults.
SKYFORMER_METHODS = {"performer_features": 128}
# Chen et al. 2021, "Skyformer", section 5 and the authors' code.
SKYFORMER = {
    **SIZE,
    **SKYFORMER_METHODS,
    "activation_dropout": 0.1,
    "embedding_std": 0.02,
    "classifier_dim": 128,
}
# Qin et al. 2022, "The Devil in Linear Transformer", the authors' code for the benchmark of June 2022.
STATE_SPACE = {
    **SIZE,
    "encoder_ffn": "glu",
    "encoder_norm": "batchnorm",
    "absolute_positions": "sinusoidal",
    "dropout": 0.0,
    "embedding_dropout": 0.1,
    "attention_dropout": 0.0,
    "performer_features": 32,
    "pixel_input": "linear",
    "transnormer_parts": "state-space",
}
PRESETS = (
    Architecture("lra_skyformer", everywhere("softmax"), SKYFORMER),
    Architecture("lra_state_space", T1, STATE_SPACE),
)

for row in PRESETS:
    row.register(LRAModel, LRAConfig)
