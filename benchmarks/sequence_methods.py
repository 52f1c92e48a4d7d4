"""The attentions that the costs by length, of images and of speech compare: labels, colours, flags."""

from dataclasses import dataclass, field

from pipeline.methods import ATTENTIONS


@dataclass(frozen=True)
class SequenceMethod:
    """An attention in every layer of a decoder; `plan` is its word in layer plans, `options` its flags."""

    label: str
    color: str
    plan: str
    options: dict[str, str] = field(default_factory=dict)
    style: str = "-"


def _alone(name: str) -> SequenceMethod:
    return SequenceMethod(ATTENTIONS[name].label, ATTENTIONS[name].color, name)


def _norm(name: str, feature_map: str) -> SequenceMethod:
    method = ATTENTIONS[name]
    options = {"--norm-feature-map": feature_map}
    return SequenceMethod(f"NormAttention, {method.label[-2:]}", method.color, "norm", options)


def _reformer(rounds: int, style: str) -> SequenceMethod:
    color = ATTENTIONS["reformer"].color
    options = {"--reformer-rounds": str(rounds)}
    return SequenceMethod(f"Reformer, {rounds} round{'s'[: rounds > 1]}", color, "reformer", options, style)


SEQUENCE_METHODS = {
    **{name: _alone(name) for name in ("softmax", "elu")},
    "norm-t1": _norm("transnormer_t1", "elu"),
    "norm-t2": _norm("transnormer_t2", "1+elu"),
    **{name: _alone(name) for name in ("lln", "lln_diag")},
    **{f"reformer-{n}": _reformer(n, style) for n, style in ((1, ":"), (4, "--"), (8, "-"))},
}
"""By the name in commands, in the order of the tables."""
