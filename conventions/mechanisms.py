"""The attention mechanisms: names in layer plans, labels, colours, rows of the papers; without torch.

`user_dir/attention/NAME.py` holds the computation and the options of a mechanism. Everything else is declared
here, once: layer plans, architectures, tables, plots and docs/mechanisms.md read it.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Method:
    """A method of the tables: a mechanism in every layer of a model, or TransNormer's two.

    `label` is the name for readers; `color` the colour of the method in every plot, which no other method has
    (first from Okabe and Ito's and Tol's sets, which colour-blind readers can read). `language_model` is
    fairseq's name of the architecture, `encoder` that of the encoder's YAML; "" where there is none.
    `transnormer` is the row of the method in TransNormer's Tables 4 and 5, `lln` that in LLN's Table 1, or
    "". `quadratic`: cost grows with the square of the length. `style` is matplotlib's style of its curves.
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


@dataclass(frozen=True)
class Mechanism:
    """An attention by its name in layer plans; its file in user_dir/attention is called so, too, or `file`.

    `about`, `time` per head and `state`, which decoding keeps, are columns of docs/mechanisms.md. `method` is
    the method that has it in every layer; None for TransNormer's two attentions.
    """

    name: str
    about: str
    time: str
    state: str = ""
    method: Method | None = None
    file: str = ""


_ALL: Sequence[Mechanism] = (
    Mechanism(
        "softmax",
        "softmax attention",
        "O(N² d)",
        "grows",
        Method("softmax", "#000000", "", "softmax", "Vanilla", "Softmax baseline", quadratic=True),
    ),
    Mechanism("diag", "ReLU (T1) or softmax (T2) inside blocks", "O(N C d)", "one block"),
    Mechanism("norm", "elu (T1) or 1+elu (T2), normalised by RMSNorm", "O(N d²)", "d × d"),
    Mechanism(
        "elu",
        "1+elu, normalised by its sum",
        "O(N d²)",
        "d × (d+1)",
        Method("1+elu", "#009E73", "linear_transformer_lm", "linear", "1+elu", "ELU"),
    ),
    Mechanism(
        "lln",
        "exp(αq), exp(βk) by moment matching, normalised by its sum",
        "O(N d²)",
        "d × (d+1)",
        Method("LLN", "#CC79A7", "lln_lm", "lln", "", "LLN"),
    ),
    Mechanism(
        "lln_diag",
        "`lln` averaged with softmax inside blocks",
        "O(N d² + N C d)",
        "d × (d+1), one block",
        Method("LLN+Diag", "#E69F00", "lln_diag_lm", "lln_diag", "", "LLN+Diag"),
    ),
    Mechanism(
        "performer",
        "random features of the softmax kernel",
        "O(N m d)",
        "(m+1) × (d+1)",
        Method("Performer", "#882255", "performer_lm", "performer", "Performer", "Performer"),
    ),
    Mechanism(
        "cosformer",
        "ReLU, weighted by the cosine of the distance",
        "O(N d²)",
        "2d × (d+1)",
        Method("cosFormer", "#332288", "cosformer_lm", "cosformer", "", "cosFormer"),
    ),
    Mechanism(
        "transformer_ls",
        "window and pooled chunks",
        "O(N (w + r N/C) d), encoder O(N (2w + r) d)",
        "grows by r per chunk",
        Method("Transformer-LS", "#999933", "transformer_ls_lm", "transformer_ls", "LS", "Transformer LS"),
    ),
    Mechanism(
        "flash",
        "gated unit, quadratic inside chunks",
        "O(N (C s + C e + s e))",
        "s × e, one chunk",
        Method("FLASH", "#56B4E9", "flash_lm", "flash", "FLASH", "FLASH"),
    ),
    Mechanism(
        "flash_quad",
        "gated unit, squared ReLU",
        "O(N² (s + e))",
        "grows",
        Method("FLASH-quad", "#AA4499", "flash_quad_lm", "flash_quad", "FLASH-quad", quadratic=True),
        file="flash",
    ),
    Mechanism(
        "tnn",
        "gated unit, Toeplitz matrix",
        "O(N log N · e)",
        "grows",
        Method("TNN", "#AACC00", "tnn_lm", "tnn", "", "TNN"),
    ),
    # With decays, causal only.
    Mechanism(
        "retention",
        "RetNet: g = log(1 − 2^(−5−h)) in head h, rotary positions, gate",
        "O(N d e)",
        "d × e",
        Method("RetNet", "#55CCCC", "retnet_lm"),
    ),
    Mechanism(
        "lightning",
        "TransNormerLLM: g = −slope, ALiBi's, less in later layers; silu, gate",
        "O(N d²)",
        "d × d (2d × d in the first layer)",
        Method("TransNormerLLM", "#DD99FF", "transnormerllm"),
    ),
    Mechanism(
        "gated",
        "gated linear attention: g = log σ(W x + b) / 16, gate",
        "O(N d e)",
        "d × e",
        Method("GLA", "#FF0099", "gated_linear_lm"),
    ),
    # Encoders only.
    Mechanism(
        "nystromformer",
        "Nyström landmarks",
        "O(N m d + m³)",
        method=Method("Nyströmformer", "#5874E4", "", "nystromformer", "", "Nystromformer"),
    ),
    Mechanism(
        "linformer",
        "keys and values projected to r slots",
        "O(N r d)",
        method=Method("Linformer", "#6E3712", "", "linformer"),
    ),
    Mechanism(
        "skyformer",
        "Gaussian kernel through landmarks",
        "O(N m d + m³)",
        method=Method("Skyformer", "#AD3ADF", "", "skyformer"),
    ),
    Mechanism(
        "kernelized",
        "Gaussian kernel",
        "O(N² d)",
        method=Method("Kernelized", "#D89264", "", "kernelized", quadratic=True),
    ),
    Mechanism(
        "informer",
        "exact for c queries, mean for the others",
        "O(N c d)",
        method=Method("Informer", "#2EB82E", "", "informer"),
    ),
    Mechanism(
        "reformer",
        "buckets by hashing",
        "O(rounds · N C d)",
        "C per round and bucket",
        Method("Reformer", "#DF3A4A", "", "reformer", "", "Reformer"),
    ),
    Mechanism(
        "bigbird",
        "neighbouring, global and random blocks",
        "O(N C d)",
        method=Method("BigBird", "#195766", "", "bigbird"),
    ),
    Mechanism(
        "longformer",
        "window and one global token",
        "O(N w d)",
        method=Method("Longformer", "#34532D", "", "longformer", "", "Longformer"),
    ),
)
MECHANISMS = {one.name: one for one in _ALL}
"""By name, in the order of docs/mechanisms.md and of the tables."""
OWN = ("softmax", "diag", "norm", "elu", "lln", "lln_diag")
"""The mechanisms of the three papers, and softmax attention; the others are methods they compare with."""
