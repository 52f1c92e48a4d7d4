"""A language model or encoder whose features torch.compile computes, the whole model in one graph.

Whether a batch has padding decides what a model computes, so it is asked before: a batch without runs
compiled, as nearly all of language models do, masked ones included; the others run as before. So do batches
of another size, such as an epoch's last: for one of them torch.compile would compile the model again, which
takes longer than it saves.
"""

from functools import partial
from typing import Any

import torch
from fairseq.models.transformer import TransformerDecoderBase
from torch import Tensor, nn

from ..errors import UserError
from ..modules.padding import rows_without_padding
from .encoder import LinearAttentionEncoder

KNOWN = {"features_only", "src_lengths"}
"""Arguments besides the tokens; a call with others runs as before."""


def compile_features(model: nn.Module, backend: str = "inductor") -> None:
    """Has `model(tokens, features_only=True)` run compiled from now on, also inside wrappers like DDP's.

    Compiled for the first size that two batches in a row have, once for training and once for evaluation.

    Raises:
        UserError: for a model that is neither a decoder nor an encoder of this plugin.
    """
    while isinstance(inner := getattr(model, "module", None), nn.Module):
        model = inner
    body = _body(model)
    plain = model.forward
    features = partial(_vanilla, body) if isinstance(body, TransformerDecoderBase) else plain
    whole = torch.compile(features, fullgraph=True, dynamic=False, backend=backend)
    # For training and for evaluation: the size of the last batch, and the size that is compiled.
    last: dict[bool, torch.Size] = {}
    usual: dict[bool, torch.Size] = {}

    def is_usual(size: torch.Size) -> bool:
        """Whether batches have this size; the first that two in a row have is taken for it."""
        mode = torch.is_grad_enabled()
        if last.get(mode) == size:
            usual.setdefault(mode, size)
        last[mode] = size
        return usual.get(mode) == size

    def forward(src_tokens: Tensor, **others: Any) -> tuple[Tensor, dict]:
        known = others.get("features_only") and others.keys() <= KNOWN
        measured = getattr(getattr(model, "attention_statistics", None), "due", False)
        without_padding = known and not measured and not bool(src_tokens.eq(body.padding_idx).any())
        if not without_padding or not is_usual(src_tokens.shape):
            return plain(src_tokens, **others)
        with rows_without_padding():
            return whole(src_tokens, features_only=True)

    model.forward = forward


def _body(model: nn.Module) -> nn.Module:
    """The decoder of a language model, or the plugin's encoder; both know what padding is."""
    encoder, decoder = (getattr(model, name, None) for name in ("encoder", "decoder"))
    if encoder is None and decoder is not None:
        return decoder
    encoder = getattr(encoder, "sentence_encoder", None)
    if decoder is None and isinstance(encoder, LinearAttentionEncoder):
        return encoder
    raise UserError(f"--compile is for language models, not for {type(model).__name__}; leave it out")


def _vanilla(
    decoder: TransformerDecoderBase, tokens: Tensor, features_only: bool
) -> tuple[Tensor, dict[str, list]]:
    """fairseq's `extract_features` of rows without padding, which asks each batch whether it has some."""
    x = decoder.embed_scale * decoder.embed_tokens(tokens)
    if decoder.quant_noise is not None:
        x = decoder.quant_noise(x)
    if decoder.project_in_dim is not None:
        x = decoder.project_in_dim(x)
    if decoder.embed_positions is not None:
        x = x + decoder.embed_positions(tokens)
    if decoder.layernorm_embedding is not None:
        x = decoder.layernorm_embedding(x)
    x = decoder.dropout_module(x).transpose(0, 1)
    states = [x]
    mask = decoder.buffered_future_mask(x)
    for layer in decoder.layers:
        x, _, _ = layer(x, None, None, None, self_attn_mask=mask, self_attn_padding_mask=None)
        states.append(x)
    if decoder.layer_norm is not None:
        x = decoder.layer_norm(x)
    x = x.transpose(0, 1)
    if decoder.project_out_dim is not None:
        x = decoder.project_out_dim(x)
    return x, {"attn": [None], "inner_states": states}
