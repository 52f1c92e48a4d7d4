"""The attentions compared on the copy task and on images: names, labels, colours, flags."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pipeline.errors import UserError
from pipeline.methods import ATTENTIONS


@dataclass(frozen=True)
class SequenceMethod:
    """An attention in every layer of a decoder; `plan` is its word in layer plans, `options` its flags."""

    label: str
    color: str
    plan: str
    options: dict[str, str] = field(default_factory=dict)
    style: str = "-"

    def flags(self) -> list[str]:
        """Those of fairseq-train that choose it."""
        options = {"--decoder-attention": self.plan, **self.options}
        return [word for option in options.items() for word in option]


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

VIT_METHODS = {
    **{name: ATTENTIONS[name] for name in ("softmax", "lln_diag", "linformer")},
    **{name: ATTENTIONS[f"transnormer_{name}"] for name in ("t1", "t2")},
}
"""Those of Vision Transformers, by the ending of the YAML in configs/vit, in the order of the tables."""

PIXEL_METHODS = {
    "softmax": ATTENTIONS["softmax"],
    "linear": ATTENTIONS["elu"],
    "t2": ATTENTIONS["transnormer_t2"],
    "lln_diag": ATTENTIONS["lln_diag"],
    "lsh": ATTENTIONS["reformer"],
}
"""Those of images byte by byte, by the ending of the YAML in configs/images, in the order of the tables."""


def choose_from(known: Mapping[str, object], text: str) -> list[str]:
    """The names in a list with commas, or all that are known; UserError for another one."""
    names = list(known) if text == "all" else list(dict.fromkeys(text.split(",")))
    for name in names:
        if name not in known:
            raise UserError(
                f"{name!r} is no attention of this command; choose all, or some of {', '.join(known)}"
            )
    return names


def choose_methods(text: str) -> list[str]:
    """The names in a list with commas: `all`, one of the table, or a word that several begin with.

    Raises UserError for an unknown one.
    """
    chosen: dict[str, None] = {}
    for word in list(SEQUENCE_METHODS) if text == "all" else text.split(","):
        found = [word] if word in SEQUENCE_METHODS else _variants(word)
        if not found:
            raise UserError(
                f"{word!r} is no attention of this command; choose all, or some of norm, reformer, "
                f"{', '.join(SEQUENCE_METHODS)}"
            )
        chosen.update(dict.fromkeys(found))
    return list(chosen)


def _variants(word: str) -> Sequence[str]:
    return [name for name in SEQUENCE_METHODS if name.startswith(f"{word}-")]
