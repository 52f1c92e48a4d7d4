"""The compared methods as language models and as encoders, in the order of the tables."""

from collections.abc import Iterable, Mapping, Sequence

from conventions.mechanisms import MECHANISMS, OWN, Method

VANILLA = "transformer_lm"
SOFTMAX = "softmax"
OF_MECHANISMS = {name: one.method for name, one in MECHANISMS.items() if one.method}
PAPERS = (
    Method("vanilla", "#000000", VANILLA, "", "Vanilla", quadratic=True),
    OF_MECHANISMS[SOFTMAX],
    Method(
        "TransNormer T1", "#0072B2", "transnormer_t1", "transnormer_t1", "TransNormer T1", "TransNormer T1"
    ),
    Method(
        "TransNormer T2", "#D55E00", "transnormer_t2", "transnormer_t2", "TransNormer T2", "TransNormer T2"
    ),
    *(method for name, method in OF_MECHANISMS.items() if name in OWN and name != SOFTMAX),
)
OTHERS = tuple(
    one for name, one in OF_MECHANISMS.items() if name not in OWN and one.language_model and one.encoder
)
WITH_DECAYS = tuple(one for one in OF_MECHANISMS.values() if one.language_model and not one.encoder)
ENCODERS_ONLY = tuple(
    one for name, one in OF_MECHANISMS.items() if name not in OWN and not one.language_model
)
METHODS = (*PAPERS, *OTHERS, *WITH_DECAYS, *ENCODERS_ONLY)
TRANSNORMERS = ("transnormer_t1", "transnormer_t2")
# The models that the benchmarks compare by default.
MAIN_LANGUAGE_MODELS = (VANILLA, *TRANSNORMERS, "linear_transformer_lm")
# The encoders of the papers' own methods, which are fine-tuned.
MAIN_ENCODERS = (SOFTMAX, *TRANSNORMERS, "lln", "lln_diag", "linear")
# Panels of a plot in which all of them are drawn, and with them the order of the tables. The first of each is
# the common yardstick.
LANGUAGE_MODEL_PANELS = {
    "Linear attention of the papers": (*MAIN_LANGUAGE_MODELS, "lln_lm", "lln_diag_lm"),
    "Methods they compare with": (VANILLA, *(method.language_model for method in OTHERS)),
    "Linear attention with decays": (VANILLA, *(method.language_model for method in WITH_DECAYS)),
}
ENCODER_PANELS = {
    "Linear attention of the papers": MAIN_ENCODERS,
    "Others with a causal form": (SOFTMAX, *(method.encoder for method in OTHERS)),
    "Others, encoders only": (SOFTMAX, *(method.encoder for method in ENCODERS_ONLY)),
}


def _in_order(panels: Mapping[str, Sequence[str]], methods: Mapping[str, Method]) -> dict[str, Method]:
    return {name: methods[name] for names in panels.values() for name in names}


LANGUAGE_MODELS = _in_order(LANGUAGE_MODEL_PANELS, {m.language_model: m for m in METHODS})
"""Method of each language model, by fairseq's name of the architecture, in the order of the tables."""

ENCODERS = _in_order(ENCODER_PANELS, {m.encoder: m for m in METHODS})
"""Method of each encoder, by the name of its YAML, in the order of the tables."""

LINEAR = "linear"
ATTENTIONS = {"elu" if name == LINEAR else name: method for name, method in ENCODERS.items()}
"""The same by the name of the mechanism in layer plans; TransNormer's two keep theirs."""

ATTENTION_PANELS = {
    title: tuple("elu" if name == LINEAR else name for name in names)
    for title, names in ENCODER_PANELS.items()
}


NORM_ATTENTION = Method("NormAttention", "#2020C5", transnormer="NormAttention")
KERNELS = {
    "quadratic": Method("quadratic", "#402D53"),
    "relu": Method("ReLU", "#126E12"),
}
"""Kernels of attention that LLN's analysis compares with; no models."""

ANALYSED = {**ATTENTIONS, "norm": NORM_ATTENTION, **KERNELS}
"""All methods in the figures of the analysis, by their names in the JSON files."""


FEW = 8
"""Curves that one panel can show."""
NAMED = {**OF_MECHANISMS, **ENCODERS, **ATTENTIONS, **LANGUAGE_MODELS, "norm": NORM_ATTENTION}
"""Methods by architecture, YAML or mechanism name."""


def label_of(name: str) -> str:
    """A method's label; its name if the method is unknown."""
    return NAMED[name].label if name in NAMED else name


def color_of(name: str) -> str | None:
    """A method's colour; None if the method is unknown."""
    return NAMED[name].color if name in NAMED else None


def groups(measured: Sequence[str], panels: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """The `panels` (title to names) in which more is measured than their first name, the common yardstick.

    A title comes with a line break before it, and is empty if there is only one group.
    """
    found = {title: [name for name in names if name in measured] for title, names in panels.items()}
    found = {title: names for title, names in found.items() if set(names) - {panels[title][0]}}
    if len(found) < 2:
        return {"": list(measured)}
    return {f"\n{title}": names for title, names in found.items()}


def drawn(measured: Sequence[str], panels: Mapping[str, Sequence[str]]) -> list[str]:
    """The methods in a picture of costs: all if they are few, else the papers'; the tables have all."""
    return list(measured) if len(measured) <= FEW else next(iter(groups(measured, panels).values()))


def performer_note(names: Iterable[str], paper: bool = False) -> list[str]:
    """Which form Performer has in a table of `names`, in a sentence; nothing if it is not in it.

    paper: it was run with `--performer-paper`.
    """
    if not any("performer" in name for name in names):
        return []
    if paper:
        return ["Performer here is in the form of TransNormer's runs (--performer-paper)."]
    return [
        "Performer here is in performer-pytorch's form: FAVOR+ with orthogonal features, the same in "
        "training and evaluation. The papers' figures are of other forms (docs/peers.md)."
    ]
