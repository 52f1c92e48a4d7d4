"""The two Long Range Arena presets, each an architecture; their tasks' settings live in configs/."""

from .architectures import T1, early_and_late, everywhere, register_lra

SIZE = {
    "encoder_layers": 2,
    "encoder_embed_dim": 64,
    "encoder_attention_heads": 2,
    "encoder_ffn_embed_dim": 128,
}
# What the approximate methods of Skyformer's comparison use: 128 features, the other defaults fit.
SKYFORMER_METHODS = {"performer_features": 128}
DIAG_AND_NORM = early_and_late("diag", "norm")


def register() -> None:
    """Register both."""
    # Chen et al. 2021, "Skyformer", section 5 and the authors' code.
    register_lra(
        "lra_skyformer",
        everywhere("softmax"),
        **SIZE,
        **SKYFORMER_METHODS,
        activation_dropout=0.1,
        embedding_std=0.02,
        classifier_dim=128,
    )
    # Qin et al. 2022, "The Devil in Linear Transformer", the authors' code for the benchmark of June 2022.
    register_lra(
        "lra_state_space",
        DIAG_AND_NORM,
        **SIZE,
        **T1,
        encoder_ffn="glu",
        encoder_norm="batchnorm",
        absolute_positions="sinusoidal",
        dropout=0.0,
        embedding_dropout=0.1,
        attention_dropout=0.0,
        pixel_input="linear",
        transnormer_parts="state-space",
    )


register()
