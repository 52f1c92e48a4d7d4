"""The named architectures: a layer plan and a few other defaults, by a row each or by a mechanism alone.

Each is a separate fairseq model with its own defaults in its configuration, so that `fairseq-train --arch
NAME` and a YAML with `model: {_name: NAME}` build the same network.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from fairseq.models import register_model

from conventions.mechanisms import MECHANISMS
from conventions.plans import OPEN_OPTIONS, PLAN_WORDS, PlanWord, everywhere

from .config import LanguageModelConfig, RobertaConfig
from .language_model import LinearAttentionLM
from .layer_plan import fill_in_options
from .options import mechanism_fields, with_attention_options
from .roberta import LinearAttentionRoberta

OPEN_FLAGS = ("no_glu_bias", "no_scale_embedding", "no_share_decoder_input_output_embed")
"""Flags whose default depends on the architecture; None says that they were not given."""


@dataclass(frozen=True)
class Architecture:
    """A row: fairseq's name, the plan with its options, and other defaults of configuration fields.

    `flags` are those of `OPEN_FLAGS` that are on by default. (fairseq would turn a field whose default is
    True into a flag that turns it off.)
    """

    name: str
    plan: PlanWord
    defaults: dict[str, object] = field(default_factory=dict)
    flags: frozenset[str] = frozenset()

    def register(self, model: type, config: type, causal: bool = False) -> None:
        """Register a subclass of `model` called `name`, with a configuration that extends `config`.

        fairseq keeps one class and one dataclass for each name.
        """
        own = with_attention_options(f"{self.name}_config", config, causal, **self.defaults)
        defaults = {name: mechanism_fields()[name].default for name in OPEN_OPTIONS} | self.plan.options
        defaults |= {name: name in self.flags for name in OPEN_FLAGS if hasattr(own, name)}

        class Named(model):
            default_plan = staticmethod(self.plan.plan)
            fill_in_options = staticmethod(partial(fill_in_options, defaults=defaults))

        Named.__name__ = Named.__qualname__ = self.name
        for made in (Named, own):  # where pickle looks for it
            made.__module__ = __name__
            globals()[made.__name__] = made
        register_model(self.name, dataclass=own)(Named)


T1, T2 = PLAN_WORDS["transnormer_t1"], PLAN_WORDS["transnormer_t2"]
TRANSNORMER_LM = {"decoder_ffn": "glu", "decoder_norm": "rmsnorm"}
TRANSNORMER_ROBERTA = {"encoder_ffn": "glu", "encoder_norm": "rmsnorm", "attention_dropout": 0.0}
SEVEN_LAYERS = {"decoder_layers": 7, "decoder_attention_heads": 1}
FLASH_LM = {
    "decoder_layers": 10,
    "decoder_attention_heads": 1,
    "decoder_norm": "scalenorm",
    "decoder_final_norm": "layernorm",
}
FLASH_ROBERTA = {"encoder_layers": 24, "encoder_attention_heads": 1}
TNN_LM = {
    **SEVEN_LAYERS,
    **TRANSNORMER_LM,
    "decoder_final_norm": "layernorm",
    "absolute_positions": "none",
    "glu_dim": 512,
}
TNN_ROBERTA = {
    **TRANSNORMER_ROBERTA,
    "encoder_attention_heads": 1,
    "absolute_positions": "none",
    "glu_dim": 768,
}
# Settings of torchscale's RetNet and of the released TransNormerLLM, with their initialisation.
WITHOUT_BIAS = frozenset({"no_glu_bias", "no_share_decoder_input_output_embed"})
RETNET_LM = {"decoder_ffn": "glu", "decoder_norm": "weighted_rmsnorm", "absolute_positions": "none"}
RETNET_FLAGS = WITHOUT_BIAS | {"no_scale_embedding"}
TRANSNORMERLLM = {
    "decoder_ffn": "glu",
    "glu_activation": "identity",
    "decoder_norm": "rmsnorm",
    "absolute_positions": "none",
    "decoder_init_std": 0.02,
}
# Layers, heads, width, and width of values and GLU, of torchscale's named sizes.
RETNET_SIZES = {
    "base": (6, 2, 512, 864),
    "medium": (16, 4, 1024, 1728),
    "xl": (24, 8, 2048, 3456),
    "3b": (32, 10, 2560, 4280),
    "7b": (32, 16, 4096, 6912),
    "13b": (40, 20, 5120, 8560),
    "65b": (64, 32, 8192, 13824),
}
TRANSFORMER_LS_LM = {
    "absolute_positions": "none",
    "decoder_norm_position": "post",
    "decoder_output_bias": "learned",
    "decoder_init_std": 0.02,
}


def retnet_of_size(name: str) -> Architecture:
    """`retnet_lm` in a size of torchscale."""
    layers, heads, width, inner = RETNET_SIZES[name]
    size = {"decoder_layers": layers, "decoder_attention_heads": heads, "decoder_embed_dim": width}
    defaults = {**RETNET_LM, **size, "retention_value_dim": inner, "glu_dim": inner}
    return Architecture(f"retnet_lm_{name}", everywhere("retention"), defaults, RETNET_FLAGS)


# Of the same size as the base `transformer_lm`; each other mechanism with a language model fills all layers.
LANGUAGE_MODELS = (
    # Qin et al. 2022, "The Devil in Linear Transformer", Table 13.
    Architecture("transnormer_t1", T1, TRANSNORMER_LM),
    Architecture("transnormer_t2", T2, TRANSNORMER_LM),
    # cosFormer (Qin et al. 2022): the authors' language model has 7 layers of one head.
    Architecture("cosformer_lm", everywhere("cosformer"), SEVEN_LAYERS),
    # FLASH and FLASH-quad (Hua et al. 2022): gated units alone, pre-norm; the encoder lacks a final norm.
    Architecture("flash_lm", everywhere("flash"), FLASH_LM),
    Architecture("flash_quad_lm", everywhere("flash_quad"), FLASH_LM),
    # TNN (Qin et al. 2023): no absolute positions, norms without parameters, a GLU as wide as the model.
    Architecture("tnn_lm", everywhere("tnn"), TNN_LM),
    # Transformer-LS (Zhu et al. 2021): post-norm, with a bias in the tied head.
    Architecture("transformer_ls_lm", everywhere("transformer_ls"), TRANSFORMER_LS_LM),
    # RetNet (Sun et al. 2023), TransNormerLLM (Qin et al. 2023), gated linear attention (Yang et al. 2024).
    Architecture("retnet_lm", everywhere("retention"), RETNET_LM, RETNET_FLAGS),
    Architecture("transnormerllm", everywhere("lightning"), TRANSNORMERLLM, WITHOUT_BIAS),
    Architecture("gated_linear_lm", everywhere("gated"), RETNET_LM, RETNET_FLAGS),
    *(retnet_of_size(name) for name in RETNET_SIZES),
)
# Of the same size as `roberta_base`; each other mechanism with an encoder fills all layers.
ENCODERS = (
    Architecture("roberta_transnormer_t1", T1, TRANSNORMER_ROBERTA),
    Architecture("roberta_transnormer_t2", T2, TRANSNORMER_ROBERTA),
    Architecture("roberta_flash", everywhere("flash"), FLASH_ROBERTA),
    Architecture("roberta_flash_quad", everywhere("flash_quad"), FLASH_ROBERTA),
    Architecture("roberta_tnn", everywhere("tnn"), TNN_ROBERTA),
)


def with_others(rows: Sequence[Architecture], names: Mapping[str, str]) -> list[Architecture]:
    """The rows, and one for each mechanism, by its architecture's name, that has none."""
    named = {row.name for row in rows}
    return [*rows, *(Architecture(one, everywhere(own)) for one, own in names.items() if one not in named)]


METHODS = {name: one.method for name, one in MECHANISMS.items() if one.method}
DECODERS = {method.language_model: name for name, method in METHODS.items() if method.language_model}
for row in with_others(LANGUAGE_MODELS, DECODERS):
    row.register(LinearAttentionLM, LanguageModelConfig, causal=True)
ENCODING = {method.encoder_architecture: name for name, method in METHODS.items() if method.encoder}
for row in with_others(ENCODERS, ENCODING):
    row.register(LinearAttentionRoberta, RobertaConfig)
