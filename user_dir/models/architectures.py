"""The named architectures, a row each: a layer plan and a few other defaults.

Each one is a fairseq model of its own with its own defaults in its configuration, so that
`fairseq-train --arch NAME` and a YAML with `model: {_name: NAME}` build the same network.
"""

from dataclasses import dataclass, field
from functools import partial

from fairseq.models import register_model

from .config import LanguageModelConfig, RobertaConfig
from .language_model import LinearAttentionLM
from .options import mechanism_fields, with_attention_options
from .plan_words import OPEN_OPTIONS, PLAN_WORDS, PlanWord, everywhere, fill_in_options
from .roberta import LinearAttentionRoberta


@dataclass(frozen=True)
class Architecture:
    """A row: fairseq's name, the plan with its options, and other defaults of configuration fields."""

    name: str
    plan: PlanWord
    defaults: dict[str, object] = field(default_factory=dict)

    def register(self, model: type, config: type, causal: bool = False) -> None:
        """Register a subclass of `model` called `name`, with a configuration that extends `config`.

        fairseq keeps one class and one dataclass for each name.
        """
        own = with_attention_options(f"{self.name}_config", config, causal, **self.defaults)
        defaults = {name: mechanism_fields()[name].default for name in OPEN_OPTIONS} | self.plan.options

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
TRANSFORMER_LS_LM = {
    "absolute_positions": "none",
    "decoder_norm_position": "post",
    "decoder_output_bias": "learned",
    "decoder_init_std": 0.02,
}

# Of the base size of `transformer_lm` but for what a row says.
LANGUAGE_MODELS = (
    # Qin et al. 2022, "The Devil in Linear Transformer", Table 13.
    Architecture("transnormer_t1", T1, TRANSNORMER_LM),
    Architecture("transnormer_t2", T2, TRANSNORMER_LM),
    Architecture("linear_transformer_lm", everywhere("elu")),
    Architecture("lln_lm", everywhere("lln")),
    Architecture("lln_diag_lm", everywhere("lln_diag")),
    # The methods the papers compare with, in the setting of the papers' runs.
    Architecture("performer_lm", everywhere("performer")),
    # cosFormer (Qin et al. 2022): the authors' language model has 7 layers of one head.
    Architecture("cosformer_lm", everywhere("cosformer"), SEVEN_LAYERS),
    # FLASH and FLASH-quad (Hua et al. 2022): gated units alone, pre-norm; the encoder has no final norm.
    Architecture("flash_lm", everywhere("flash"), FLASH_LM),
    Architecture("flash_quad_lm", everywhere("flash_quad"), FLASH_LM),
    # TNN (Qin et al. 2023): no absolute positions, norms without parameters, a GLU as wide as the model.
    Architecture("tnn_lm", everywhere("tnn"), TNN_LM),
    # Transformer-LS (Zhu et al. 2021): post-norm, with a bias in the tied head.
    Architecture("transformer_ls_lm", everywhere("transformer_ls"), TRANSFORMER_LS_LM),
)
# Of the size of `roberta_base` but for what a row says.
ENCODERS = (
    Architecture("roberta_softmax", everywhere("softmax")),
    Architecture("roberta_transnormer_t1", T1, TRANSNORMER_ROBERTA),
    Architecture("roberta_transnormer_t2", T2, TRANSNORMER_ROBERTA),
    Architecture("roberta_linear", everywhere("elu")),
    Architecture("roberta_lln", everywhere("lln")),
    Architecture("roberta_lln_diag", everywhere("lln_diag")),
    Architecture("roberta_performer", everywhere("performer")),
    Architecture("roberta_cosformer", everywhere("cosformer")),
    Architecture("roberta_flash", everywhere("flash"), FLASH_ROBERTA),
    Architecture("roberta_flash_quad", everywhere("flash_quad"), FLASH_ROBERTA),
    Architecture("roberta_tnn", everywhere("tnn"), TNN_ROBERTA),
    Architecture("roberta_transformer_ls", everywhere("transformer_ls")),
    Architecture("roberta_nystromformer", everywhere("nystromformer")),
    Architecture("roberta_linformer", everywhere("linformer")),
    Architecture("roberta_skyformer", everywhere("skyformer")),
    Architecture("roberta_kernelized", everywhere("kernelized")),
    Architecture("roberta_informer", everywhere("informer")),
    Architecture("roberta_reformer", everywhere("reformer")),
    Architecture("roberta_bigbird", everywhere("bigbird")),
    Architecture("roberta_longformer", everywhere("longformer")),
)

for row in LANGUAGE_MODELS:
    row.register(LinearAttentionLM, LanguageModelConfig, causal=True)
for row in ENCODERS:
    row.register(LinearAttentionRoberta, RobertaConfig)
