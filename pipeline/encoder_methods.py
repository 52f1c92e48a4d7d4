"""The compared encoders: names, how they look in tables and plots, and where the papers have them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Encoder:
    """An encoder with one mechanism in all layers, or TransNormer's two.

    `name` is that of its YAML, and with `roberta_` before it that of its architecture; `label` what a
    reader sees; `color` the one colour it has in every plot (Okabe and Ito's and Tol's sets);
    `transnormer` and `lln` are its rows in the tables of TransNormer (5) and LLN (1), or "".
    """

    name: str
    label: str
    color: str
    transnormer: str = ""
    lln: str = ""

    @property
    def architecture(self) -> str:
        """fairseq's name."""
        return f"roberta_{self.name}"


# In the order of the tables.
ENCODERS = {
    e.name: e
    for e in (
        Encoder("softmax", "softmax", "#000000", "Vanilla", "Softmax baseline"),
        Encoder("transnormer_t1", "TransNormer T1", "#0072B2", "TransNormer T1", "TransNormer T1"),
        Encoder("transnormer_t2", "TransNormer T2", "#D55E00", "TransNormer T2", "TransNormer T2"),
        Encoder("lln", "LLN", "#CC79A7", "", "LLN"),
        Encoder("lln_diag", "LLN+Diag", "#E69F00", "", "LLN+Diag"),
        Encoder("linear", "1+elu", "#009E73", "1+elu", "ELU"),
        Encoder("performer", "Performer", "#882255", "Performer", "Performer"),
        Encoder("cosformer", "cosFormer", "#332288", "", "cosFormer"),
        Encoder("transformer_ls", "Transformer-LS", "#999933", "LS", "Transformer LS"),
        Encoder("flash", "FLASH", "#56B4E9", "FLASH", "FLASH"),
        Encoder("flash_quad", "FLASH-quad", "#AA4499", "FLASH-quad", ""),
        Encoder("tnn", "TNN", "#888888", "", "TNN"),
        Encoder("nystromformer", "Nyströmformer", "#0072B2", "", "Nystromformer"),
        Encoder("linformer", "Linformer", "#D55E00"),
        Encoder("skyformer", "Skyformer", "#CC79A7"),
        Encoder("kernelized", "Kernelized", "#E69F00"),
        Encoder("informer", "Informer", "#009E73"),
        Encoder("reformer", "Reformer", "#882255", "", "Reformer"),
        Encoder("bigbird", "BigBird", "#332288"),
        Encoder("longformer", "Longformer", "#56B4E9", "", "Longformer"),
    )
}
# Those of the papers' own methods: the ones that are fine-tuned.
MAIN = ("softmax", "transnormer_t1", "transnormer_t2", "lln", "lln_diag", "linear")
# Panels of a plot in which all of them are drawn; each colour occurs once in a panel.
PANELS = {
    "Linear attention of the papers": MAIN,
    "Others with a causal form": (
        "softmax",
        "performer",
        "cosformer",
        "transformer_ls",
        "flash",
        "flash_quad",
        "tnn",
    ),
    "Others, encoders only": (
        "softmax",
        "nystromformer",
        "linformer",
        "skyformer",
        "kernelized",
        "informer",
        "reformer",
        "bigbird",
        "longformer",
    ),
}
