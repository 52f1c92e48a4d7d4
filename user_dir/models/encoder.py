"""The bidirectional encoder of the RoBERTa models: embeddings and the layers of a plan."""

from typing import Any

import torch
from fairseq.modules import FairseqDropout
from torch import Tensor, nn

from conventions.plans import Layer

from ..modules import LearnedPositions, build_norm, choose_kernels, tell_padding
from ..modules.padding import padding_back, padding_last
from .stack import build_layers, is_pre_norm, positions_kind
from .vocabulary import check_tokens, embed


class LinearAttentionEncoder(nn.Module):
    """A stack of layers whose attentions come from a layer plan, post-norm unless configured otherwise.

        x = LayerNorm(E[token] + P[position]);  layers

    Padding may be on either side of a row; positions count from the first real token. The parts carry the
    names of fairseq's sentence encoder, so that its checkpoints and those of the authors' fork load.

    Args:
        cfg: a `RobertaConfig` with its `max_positions` filled in.
        embed_tokens: the input embedding, whose `padding_idx` says which token is padding.
        plan: the mechanisms of each layer.
    """

    def __init__(self, cfg: Any, embed_tokens: nn.Embedding, plan: list[Layer]) -> None:
        super().__init__()
        self.embed_tokens = embed_tokens
        self.padding_idx = embed_tokens.padding_idx
        width = cfg.encoder_embed_dim
        self.embed_positions = None
        if positions_kind(cfg, "learned", "none") == "learned":
            self.embed_positions = LearnedPositions(cfg.max_positions, width, self.padding_idx)
        self.layernorm_embedding = build_norm("layernorm", width)
        self.dropout = FairseqDropout(cfg.dropout)
        self.layers = build_layers(cfg, "encoder", plan)
        self.layer_norm = None
        if is_pre_norm(cfg, "encoder") and not cfg.no_encoder_final_norm:
            self.layer_norm = build_norm(cfg.encoder_norm, width)
        choose_kernels(self, cfg.attention_backend)

    def forward(self, src_tokens: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Features of each token.

        Args:
            src_tokens: `(B, N)` token indices, padding on either side.

        Returns:
            `(B, N, D)`, and the states before and after each layer, each `(N, B, D)`.
        """
        check_tokens(src_tokens)
        tokens, padding_mask, shift = padding_last(src_tokens, self.padding_idx)
        tell_padding(self, padding_mask)
        x = self._embed(tokens, padding_mask).transpose(0, 1).contiguous()  # avoids a copy in every matmul
        states = [x]
        for layer in self.layers:
            x = layer(x, key_padding_mask=padding_mask)
            states.append(x)
        if self.layer_norm is not None:
            x = self.layer_norm(x)
        x, *states = padding_back([x, *states], shift)
        return x.transpose(0, 1), states

    def _embed(self, tokens: Tensor, padding_mask: Tensor | None) -> Tensor:
        x = embed(self.embed_tokens, tokens)
        if self.embed_positions is not None:
            self.embed_positions.check_length(tokens.shape[1], padding_mask)
            x = x + self.embed_positions(torch.arange(tokens.shape[1], device=tokens.device)[None])
        x = self.dropout(self.layernorm_embedding(x))
        return x if padding_mask is None else x.masked_fill(padding_mask.unsqueeze(-1), 0.0)
