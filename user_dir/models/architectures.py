"""The named architectures: a layer plan and a few other defaults each.

Each one is a fairseq model of its own with its own defaults in its configuration, so that
`fairseq-train --arch NAME` and a YAML with `model: {_name: NAME}` build the same network.
"""

from collections.abc import Callable

from fairseq.models import register_model

from .config import LanguageModelConfig
from .language_model import LinearAttentionLM
from .options import with_attention_options


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
    config = with_attention_options(f"{name}_config", LanguageModelConfig, **defaults)
    body = {"default_plan": staticmethod(plan), "__module__": __name__}
    register_model(name, dataclass=config)(type(name, (LinearAttentionLM,), body))


TRANSNORMER = {"decoder_ffn": "glu", "decoder_norm": "rmsnorm"}


def register() -> None:
    """Register all of them (TransNormer: Qin et al. 2022, Table 13; base size of `transformer_lm`)."""
    register_language_model(
        "transnormer_t1",
        early_and_late("diag", "norm"),
        diag_activation="relu",
        norm_feature_map="elu",
        **TRANSNORMER,
    )
    register_language_model(
        "transnormer_t2",
        early_and_late("diag", "norm"),
        diag_activation="softmax",
        norm_feature_map="1+elu",
        **TRANSNORMER,
    )
    register_language_model("linear_transformer_lm", everywhere("elu"))


register()
