"""Words that stand for a whole layer plan and for options of its mechanisms."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class PlanWord:
    """A plan for a number of layers, and the options that its mechanisms have unless others are given."""

    plan: Callable[[int], str]
    options: Mapping[str, str] = field(default_factory=dict)


def early_and_late(early: str, late: str) -> Callable[[int], str]:
    """The plan with `early` in the first half of the layers (rounded down) and `late` in the rest."""

    def plan(layers: int) -> str:
        half = layers // 2
        parts = [f"{name}*{count}" for name, count in ((early, half), (late, layers - half)) if count]
        return ",".join(parts)

    return plan


def everywhere(name: str) -> PlanWord:
    """The plan with `name` in every layer."""
    return PlanWord(lambda layers: f"{name}*{layers}")


TRANSNORMER = early_and_late("diag", "norm")
PLAN_WORDS = {
    # Qin et al. 2022, "The Devil in Linear Transformer", Table 13.
    "transnormer_t1": PlanWord(TRANSNORMER, {"diag_activation": "relu", "norm_feature_map": "elu"}),
    "transnormer_t2": PlanWord(TRANSNORMER, {"diag_activation": "softmax", "norm_feature_map": "1+elu"}),
}
OPEN_OPTIONS = frozenset(option for word in PLAN_WORDS.values() for option in word.options)
"""Options whose default depends on the plan; None says that they were not given."""


def fill_in_options(cfg: Any, defaults: Mapping[str, object]) -> None:
    """Give the open options of a model's configuration their plan's values, or else `defaults`.

    Training does so before anything is compared or saved, so that a checkpoint holds them.
    """
    plan = getattr(cfg, "decoder_attention", None) or getattr(cfg, "encoder_attention", None)
    word = PLAN_WORDS.get((plan or "").strip())
    for name, value in {**defaults, **(word.options if word else {})}.items():
        if getattr(cfg, name, None) is None:
            setattr(cfg, name, value)
