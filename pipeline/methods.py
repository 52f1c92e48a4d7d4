"""The compared language models: what to call them, and the flags that make fairseq build them."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Architecture:
    """One compared model.

    `name` is fairseq's, `label` what a reader sees, `paper` the row of TransNormer's Table 4
    or "", `color` the one colour it has in every plot (Okabe and Ito's and Tol's sets, which colour-blind
    readers can read).
    """

    name: str
    label: str
    paper: str
    color: str


ARCHITECTURES = {
    a.name: a
    for a in (
        Architecture("transformer_lm", "vanilla", "Vanilla", "#000000"),
        Architecture("transnormer_t1", "TransNormer T1", "TransNormer T1", "#0072B2"),
        Architecture("transnormer_t2", "TransNormer T2", "TransNormer T2", "#D55E00"),
        Architecture("linear_transformer_lm", "1+elu", "1+elu", "#009E73"),
        Architecture("lln_lm", "LLN", "", "#CC79A7"),
        Architecture("lln_diag_lm", "LLN+Diag", "", "#E69F00"),
        Architecture("performer_lm", "Performer", "Performer", "#882255"),
        Architecture("cosformer_lm", "cosFormer", "", "#332288"),
        Architecture("transformer_ls_lm", "Transformer-LS", "LS", "#999933"),
        Architecture("flash_lm", "FLASH", "FLASH", "#56B4E9"),
        Architecture("flash_quad_lm", "FLASH-quad", "FLASH-quad", "#AA4499"),
        Architecture("tnn_lm", "TNN", "", "#888888"),
    )
}
# Those that the benchmarks compare unless they are told others.
MAIN = ("transformer_lm", "transnormer_t1", "transnormer_t2", "linear_transformer_lm")
TRANSNORMERS = ("transnormer_t1", "transnormer_t2")
# Rows of a plot in which all of them are drawn.
PANELS = {
    "Linear attention of the papers": (*MAIN, "lln_lm", "lln_diag_lm"),
    "Methods they compare with": (
        "transformer_lm",
        "performer_lm",
        "cosformer_lm",
        "transformer_ls_lm",
        "flash_lm",
        "flash_quad_lm",
        "tnn_lm",
    ),
}


def groups(measured: Sequence[str], panels: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Of `panels` (title to names) those with more in them than their first, the common yardstick.

    A title comes with a line break before it, and is empty if there is but one group.
    """
    found = {title: [name for name in names if name in measured] for title, names in panels.items()}
    found = {title: names for title, names in found.items() if set(names) - {panels[title][0]}}
    if len(found) < 2:
        return {"": list(measured)}
    return {f"\n{title}": names for title, names in found.items()}


@dataclass(frozen=True)
class Size:
    """Size of a benchmarked model. The vanilla body has the usual inner width, 4 x `width`."""

    layers: int
    width: int
    heads: int
    vocabulary: int

    def __str__(self) -> str:
        return f"{self.layers} layers, width {self.width}, {self.heads} heads, vocabulary {self.vocabulary:,}"

    def as_dict(self) -> dict[str, int]:
        """For JSON."""
        return asdict(self)


SMALL = Size(layers=2, width=128, heads=4, vocabulary=4000)
BASE = Size(layers=6, width=512, heads=8, vocabulary=4000)
TINY = Size(layers=2, width=16, heads=2, vocabulary=100)


def fairseq_flags(architecture: str, size: Size) -> list[str]:
    """The flags with which fairseq builds `architecture` at `size`, embeddings tied."""
    flags = {
        "--arch": architecture,
        "--decoder-layers": size.layers,
        "--decoder-embed-dim": size.width,
        "--decoder-attention-heads": size.heads,
        "--decoder-ffn-embed-dim": 4 * size.width,
        "--dropout": 0.1,
    }
    if architecture == "transformer_lm":
        # fairseq's defaults for these two are those of the base size, not the width.
        flags |= {"--decoder-input-dim": size.width, "--decoder-output-dim": size.width}
    words = [str(word) for flag in flags.items() for word in flag]
    return [*words, "--share-decoder-input-output-embed"]
