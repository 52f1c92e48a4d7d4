"""The names of the authors' Transformer-LS language model, which is a module of its own in their decoder."""

import re

from torch import Tensor

# Patterns of what follows `decoder.model.`, and what follows `decoder.` here.
RENAMED = (
    (r"in_emb\.", "embed_tokens."),
    (r"out_emb\.", "output_projection."),
    (r"(layers\.\d+\.)attn\.", r"\1self_attn."),
    (r"(layers\.\d+\.)norm1\.", r"\1self_attn_layer_norm."),
    (r"(layers\.\d+\.)norm2\.", r"\1final_layer_norm."),
    (r"(layers\.\d+\.)ff\.", r"\1"),
)
COMPUTED_HERE = "pos_emb.inv_freq"


def rename_transformer_ls(state_dict: dict[str, Tensor], name: str) -> None:
    """Give the entries `{name}.model.…` of the authors' model the names of the decoder `name`, in place."""
    inside = f"{name}.model."
    for key in [key for key in state_dict if key.startswith(inside)]:
        value, own = state_dict.pop(key), key.removeprefix(inside)
        if own == COMPUTED_HERE:
            continue
        for pattern, replacement in RENAMED:
            own = re.sub(f"^{pattern}", replacement, own)
        state_dict[f"{name}.{own}"] = value
