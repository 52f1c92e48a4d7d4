"""The compared methods as language models and as encoders: names, labels, colours, rows of the papers."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Method:
    """A method, in every layer of a model, or TransNormer's two.

    `label` is what a reader sees; `color` the one colour of the method in every plot (Okabe and Ito's and
    Tol's sets, which colour-blind readers can read). `language_model` is fairseq's name of the architecture,
    `encoder` that of the encoder's YAML; "" where there is none. `transnormer` is the row of the method in
    TransNormer's Tables 4 and 5, `lln` that in LLN's Table 1, or "". `quadratic`: cost grows with the square
    of the length. `style` is matplotlib's style of its curves.
    """

    label: str
    color: str
    language_model: str = ""
    encoder: str = ""
    transnormer: str = ""
    lln: str = ""
    quadratic: bool = False
    style: str = "-"

    @property
    def encoder_architecture(self) -> str:
        """fairseq's name of the encoder."""
        return f"roberta_{self.encoder}"


VANILLA = "transformer_lm"
SOFTMAX = "softmax"
PAPERS = (
    Method("vanilla", "#000000", VANILLA, "", "Vanilla", quadratic=True),
    Method("softmax", "#000000", "", SOFTMAX, "Vanilla", "Softmax baseline", quadratic=True),
    Method(
        "TransNormer T1", "#0072B2", "transnormer_t1", "transnormer_t1", "TransNormer T1", "TransNormer T1"
    ),
    Method(
        "TransNormer T2", "#D55E00", "transnormer_t2", "transnormer_t2", "TransNormer T2", "TransNormer T2"
    ),
    Method("1+elu", "#009E73", "linear_transformer_lm", "linear", "1+elu", "ELU"),
    Method("LLN", "#CC79A7", "lln_lm", "lln", "", "LLN"),
    Method("LLN+Diag", "#E69F00", "lln_diag_lm", "lln_diag", "", "LLN+Diag"),
)
OTHERS = (  # that have a causal form
    Method("Performer", "#882255", "performer_lm", "performer", "Performer", "Performer"),
    Method("cosFormer", "#332288", "cosformer_lm", "cosformer", "", "cosFormer"),
    Method("Transformer-LS", "#999933", "transformer_ls_lm", "transformer_ls", "LS", "Transformer LS"),
    Method("FLASH", "#56B4E9", "flash_lm", "flash", "FLASH", "FLASH"),
    Method("FLASH-quad", "#AA4499", "flash_quad_lm", "flash_quad", "FLASH-quad", quadratic=True),
    Method("TNN", "#888888", "tnn_lm", "tnn", "", "TNN"),
)
ENCODERS_ONLY = (  # whose colours are used a second time
    Method("Nyströmformer", "#0072B2", "", "nystromformer", "", "Nystromformer"),
    Method("Linformer", "#D55E00", "", "linformer"),
    Method("Skyformer", "#CC79A7", "", "skyformer"),
    Method("Kernelized", "#E69F00", "", "kernelized", quadratic=True),
    Method("Informer", "#009E73", "", "informer"),
    Method("Reformer", "#882255", "", "reformer", "", "Reformer"),
    Method("BigBird", "#332288", "", "bigbird"),
    Method("Longformer", "#56B4E9", "", "longformer", "", "Longformer"),
)
METHODS = (*PAPERS, *OTHERS, *ENCODERS_ONLY)
TRANSNORMERS = ("transnormer_t1", "transnormer_t2")
# Those that the benchmarks compare by default.
MAIN_LANGUAGE_MODELS = (VANILLA, *TRANSNORMERS, "linear_transformer_lm")
# Those of the papers' own methods: the ones that are fine-tuned.
MAIN_ENCODERS = (SOFTMAX, *TRANSNORMERS, "lln", "lln_diag", "linear")
# Panels of a plot in which all of them are drawn, and with them the order of the tables. The first of each is
# the common yardstick; no colour occurs twice in a panel.
LANGUAGE_MODEL_PANELS = {
    "Linear attention of the papers": (*MAIN_LANGUAGE_MODELS, "lln_lm", "lln_diag_lm"),
    "Methods they compare with": (VANILLA, *(method.language_model for method in OTHERS)),
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


# NormAttention is TransNormer's: it has the colour of T1, with which it is in no figure.
NORM_ATTENTION = Method("NormAttention", "#0072B2", transnormer="NormAttention")
KERNELS = {
    "quadratic": Method("quadratic", "#999933"),
    "relu": Method("ReLU", "#56B4E9"),
}
"""Kernels of attention that LLN's analysis compares with; no models."""

ANALYSED = {**ATTENTIONS, "norm": NORM_ATTENTION, **KERNELS}
"""Whatever figures of the analysis show, by the name in their JSON files."""


NAMED = {**ENCODERS, **ATTENTIONS, **LANGUAGE_MODELS, "norm": NORM_ATTENTION}
"""Methods by any name of theirs: of an architecture, of an encoder's YAML, or in layer plans."""


def label_of(name: str) -> str:
    """What a reader sees for a method; its name if it is none of ours."""
    return NAMED[name].label if name in NAMED else name


def groups(measured: Sequence[str], panels: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Of `panels` (title to names) those with more in them than their first, the common yardstick.

    A title comes with a line break before it, and is empty if there is but one group.
    """
    found = {title: [name for name in names if name in measured] for title, names in panels.items()}
    found = {title: names for title, names in found.items() if set(names) - {panels[title][0]}}
    if len(found) < 2:
        return {"": list(measured)}
    return {f"\n{title}": names for title, names in found.items()}


def performer_note(names: Iterable[str], paper: bool = False) -> list[str]:
    """Which form Performer has in a table of `names`, in a sentence; nothing where it is none of them.

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
