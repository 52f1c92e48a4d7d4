"""Names in public checkpoints of whole language models: Transformer-LS, RetNet and TransNormerLLM."""

import re
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..attention.retention import RetentionAttention, decay_rates, rotary_angles
from ..errors import UserError

Renaming = Sequence[tuple[str, str]]

# The authors' Transformer-LS is a separate module in their decoder. Patterns of what follows
# `decoder.model.`, and what follows `decoder.` here.
TRANSFORMER_LS = (
    (r"in_emb\.", "embed_tokens."),
    (r"out_emb\.", "output_projection."),
    (r"(layers\.\d+\.)attn\.", r"\1self_attn."),
    (r"(layers\.\d+\.)norm1\.", r"\1self_attn_layer_norm."),
    (r"(layers\.\d+\.)norm2\.", r"\1final_layer_norm."),
    (r"(layers\.\d+\.)ff\.", r"\1"),
)
COMPUTED_HERE = "pos_emb.inv_freq"

# torchscale's RetNet, where names may begin with `decoder.`, and the released TransNormerLLM, where they may
# begin with `model.`.
RETNET = (
    (r"(layers\.\d+\.)retention\.", r"\1self_attn."),
    (r"(layers\.\d+\.)retention_layer_norm\.", r"\1self_attn_layer_norm."),
    (r"(layers\.\d+\.)ffn\.fc1\.", r"\1glu.l1."),
    (r"(layers\.\d+\.)ffn\.gate\.", r"\1glu.l2."),
    (r"(layers\.\d+\.)ffn\.fc2\.", r"\1glu.l3."),
)
TRANSNORMERLLM = (
    (r"lm_head\.", "output_projection."),
    (r"(layers\.\d+\.)token_mixer\.", r"\1self_attn."),
    (r"(layers\.\d+\.)channel_mixer\.", r"\1glu."),
)
CONSTANTS = "retnet_rel_pos."


def rename_transformer_ls(state_dict: dict[str, Tensor], name: str) -> None:
    """Give the entries `{name}.model.…` of the authors' model the names of the decoder `name`, in place."""
    inside = f"{name}.model."
    for key in [key for key in state_dict if key.startswith(inside)]:
        value, own = state_dict.pop(key), key.removeprefix(inside)
        if own != COMPUTED_HERE:
            state_dict[f"{name}.{_renamed(own, TRANSFORMER_LS)}"] = value


def rename_with_decays(state_dict: dict[str, Tensor], decoder: nn.Module, name: str) -> None:
    """Give the entries of torchscale's RetNet or a released TransNormerLLM the names of `decoder`, in place.

    torchscale saves the angles and decays, which are constants here: they are checked and dropped.

    Args:
        state_dict: with or without torchscale's `decoder.` or TransNormerLLM's `model.` in front.
        decoder: the model's.
        name: of the decoder in `state_dict`.

    Raises:
        UserError: where the angles or decays are those of other sizes.
    """
    for own, theirs, renaming in (
        (".retention.", "decoder.", RETNET),
        (".token_mixer.", "model.", TRANSNORMERLLM),
    ):
        if not any(own in key for key in state_dict):
            continue
        for key in list(state_dict):
            inside, value = key.removeprefix(theirs), state_dict.pop(key)
            if inside.startswith(CONSTANTS):
                _check_constant(inside.removeprefix(CONSTANTS), value, decoder)
            else:
                state_dict[f"{name}.{_renamed(inside, renaming)}"] = value


def _renamed(name: str, renaming: Renaming) -> str:
    for pattern, replacement in renaming:
        name = re.sub(f"^{pattern}", replacement, name)
    return name


def _check_constant(name: str, value: Tensor, decoder: nn.Module) -> None:
    attention = next((one for one in decoder.modules() if isinstance(one, RetentionAttention)), None)
    if attention is None:
        return
    heads, width = attention.num_heads, attention.head_dim
    constants = {"angle": rotary_angles(width).repeat_interleave(2), "decay": decay_rates(heads)}
    expected, found = constants.get(name), value.double().cpu()
    tolerance = max(1e-5, torch.finfo(value.dtype).eps)
    same = expected is not None and found.shape == expected.shape
    if not (same and torch.allclose(found, expected, rtol=tolerance, atol=1e-7)):
        raise UserError(
            f"{CONSTANTS}{name} of the checkpoint does not fit {heads} heads of width {width}; build the "
            "model with the checkpoint's --decoder-embed-dim and --decoder-attention-heads"
        )
