"""The named architectures: a layer plan and a few other defaults each.

Each one is a fairseq model of its own with its own defaults in its configuration, so that
`fairseq-train --arch NAME` and a YAML with `model: {_name: NAME}` build the same network.
"""

from collections.abc import Callable

from fairseq.models import register_model

from .config import LanguageModelConfig, RobertaConfig
from .language_model import LinearAttentionLM
from .lra import LRAModel
from .lra_config import LRAConfig
from .options import with_attention_options
from .roberta import LinearAttentionRoberta


def early_and_late(early: str, late: str) -> Callable[[int], str]:
    """The plan with `early` in the first half of the layers (rounded down) and `late` in the rest."""

    def plan(layers: int) -> str:
        half = layers // 2
        parts = [f"{name}*{count}" for name, count in ((early, half), (late, layers - half)) if count]
        return ",".join(parts)

    return plan


def everywhere(name: str) -> Callable[[int], str]:
    """The plan with `name` in every layer."""
    return lambda layers: f"{name}*{layers}"


def register_language_model(name: str, plan: Callable[[int], str], **defaults: object) -> None:
    """Register architecture `name` with fairseq: a default plan, and defaults of configuration fields."""
    _register(name, plan, LinearAttentionLM, LanguageModelConfig, defaults)


def register_roberta(name: str, plan: Callable[[int], str], **defaults: object) -> None:
    """The same for an encoder."""
    _register(name, plan, LinearAttentionRoberta, RobertaConfig, defaults)


def register_lra(name: str, plan: Callable[[int], str], **defaults: object) -> None:
    """The same for an encoder of Long Range Arena."""
    _register(name, plan, LRAModel, LRAConfig, defaults)


def _register(name: str, plan: Callable[[int], str], model: type, config: type, defaults: dict) -> None:
    causal = model is LinearAttentionLM
    config = with_attention_options(f"{name}_config", config, causal, **defaults)
    body = {"default_plan": staticmethod(plan), "__module__": __name__}
    register_model(name, dataclass=config)(type(name, (model,), body))


T1 = {"diag_activation": "relu", "norm_feature_map": "elu"}
T2 = {"diag_activation": "softmax", "norm_feature_map": "1+elu"}
TRANSNORMER_LM = {"decoder_ffn": "glu", "decoder_norm": "rmsnorm"}
TRANSNORMER_ROBERTA = {"encoder_ffn": "glu", "encoder_norm": "rmsnorm"}


def register() -> None:
    """Register all of them.

    TransNormer: Qin et al. 2022, Table 13. Language models have the base size of `transformer_lm`, encoders
    that of `roberta_base`.
    """
    transnormer = early_and_late("diag", "norm")
    register_language_model("transnormer_t1", transnormer, **T1, **TRANSNORMER_LM)
    register_language_model("transnormer_t2", transnormer, **T2, **TRANSNORMER_LM)
    register_language_model("linear_transformer_lm", everywhere("elu"))
    register_roberta("roberta_transnormer_t1", transnormer, **T1, **TRANSNORMER_ROBERTA)
    register_roberta("roberta_transnormer_t2", transnormer, **T2, **TRANSNORMER_ROBERTA)
    register_language_model("lln_lm", everywhere("lln"))
    register_language_model("lln_diag_lm", everywhere("lln_diag"))
    register_roberta("roberta_linear", everywhere("elu"))
    register_roberta("roberta_lln", everywhere("lln"))
    register_roberta("roberta_lln_diag", everywhere("lln_diag"))
    register_roberta("roberta_softmax", everywhere("softmax"))


register()
