"""The methods compared on Long Range Arena, as flags of fairseq-train."""

from pipeline.errors import UserError
from pipeline.methods import ATTENTIONS
from user_dir.attention import attention_names
from user_dir.models.architectures import T1, T2, TRANSNORMER, TRANSNORMER_ROBERTA

TRANSNORMERS = {"transnormer_t1": T1, "transnormer_t2": T2}
# TransNormer's feed-forward network and norm; those of the other preset are already the authors'.
PARTS = {"lra_skyformer": TRANSNORMER_ROBERTA, "lra_state_space": {}}


def read_attentions(text: str) -> list[str]:
    """The names in a comma-separated `text`; "all" means every compared method, in the order of the tables.

    Raises UserError for a name that is neither a bidirectional mechanism nor one of TransNormer's two.
    """
    if text == "all":
        return list(ATTENTIONS)
    names = list(dict.fromkeys(text.split(",")))
    known = [*TRANSNORMERS, *attention_names(causal=False)]
    for name in names:
        if name not in known:
            raise UserError(f"{name!r} is no attention; choose all, or some of {', '.join(known)}")
    return names


def attention_flags(preset: str, name: str, layers: int) -> list[str]:
    """The flags for `preset` with an attention in its `layers`: a mechanism everywhere, or a TransNormer."""
    if name not in TRANSNORMERS:
        return ["--encoder-attention", name]
    options = {"encoder_attention": TRANSNORMER(layers), **PARTS[preset], **TRANSNORMERS[name]}
    return [word for key, value in options.items() for word in (f"--{key.replace('_', '-')}", str(value))]
