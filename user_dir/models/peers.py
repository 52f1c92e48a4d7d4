"""The named architectures of the methods the papers compare with, in the setting of the papers' runs."""

from .architectures import everywhere, register_language_model, register_roberta


def _register_performer() -> None:
    """Performer (Choromanski et al. 2021): the base sizes, only the attention replaced."""
    register_language_model("performer_lm", everywhere("performer"))
    register_roberta("roberta_performer", everywhere("performer"))


def _register_cosformer() -> None:
    """cosFormer (Qin et al. 2022): the authors' language model has 7 layers of one head."""
    seven_layers = {"decoder_layers": 7, "decoder_attention_heads": 1}
    register_language_model("cosformer_lm", everywhere("cosformer"), **seven_layers)
    register_roberta("roberta_cosformer", everywhere("cosformer"))


def _register_flash() -> None:
    """FLASH and FLASH-quad (Hua et al. 2022): gated units alone, pre-norm; the encoder has no final norm."""
    decoder = {
        "decoder_layers": 10,
        "decoder_attention_heads": 1,
        "decoder_norm": "scalenorm",
        "decoder_final_norm": "layernorm",
    }
    encoder = {"encoder_layers": 24, "encoder_attention_heads": 1}
    for name in ("flash", "flash_quad"):
        register_language_model(f"{name}_lm", everywhere(name), **decoder)
        register_roberta(f"roberta_{name}", everywhere(name), **encoder)


def _register_tnn() -> None:
    """TNN (Qin et al. 2023): no absolute positions, norms without parameters, a GLU as wide as the model."""
    decoder = {
        "decoder_layers": 7,
        "decoder_attention_heads": 1,
        "decoder_ffn": "glu",
        "decoder_norm": "rmsnorm",
        "decoder_final_norm": "layernorm",
    }
    encoder = {"encoder_attention_heads": 1, "encoder_ffn": "glu", "encoder_norm": "rmsnorm"}
    register_language_model("tnn_lm", everywhere("tnn"), absolute_positions="none", glu_dim=512, **decoder)
    register_roberta("roberta_tnn", everywhere("tnn"), absolute_positions="none", glu_dim=768, **encoder)


def _register_sparse() -> None:
    """Reformer, BigBird and Longformer: encoders of the base size, only the attention replaced."""
    for name in ("reformer", "bigbird", "longformer"):
        register_roberta(f"roberta_{name}", everywhere(name))


def _register_landmarks() -> None:
    """Nystromformer, Linformer, Skyformer, Kernelized and Informer: encoders, only the attention replaced."""
    for name in ("nystromformer", "linformer", "skyformer", "kernelized", "informer"):
        register_roberta(f"roberta_{name}", everywhere(name))


def _register_transformer_ls() -> None:
    """Transformer-LS (Zhu et al. 2021): the language model is post-norm, with a bias in its tied head."""
    register_language_model(
        "transformer_ls_lm",
        everywhere("transformer_ls"),
        absolute_positions="none",
        decoder_norm_position="post",
        decoder_output_bias="learned",
        decoder_init_std=0.02,
    )
    register_roberta("roberta_transformer_ls", everywhere("transformer_ls"))


def register() -> None:
    """Register all of them."""
    _register_performer()
    _register_cosformer()
    _register_flash()
    _register_tnn()
    _register_sparse()
    _register_landmarks()
    _register_transformer_ls()


register()
