"""The decoder of the language models: embeddings, the layers of a plan, and the output projection."""

import math
from itertools import pairwise
from typing import Any

import torch
from fairseq.models import FairseqIncrementalDecoder
from fairseq.modules import AdaptiveSoftmax, FairseqDropout
from torch import Tensor, nn

from conventions.plans import Layer

from ..attention.parts.new_tokens import NewTokens
from ..attention.parts.state import DecodingState, State
from ..errors import UserError
from ..modules import (
    InterleavedPositions,
    LearnedPositions,
    SinusoidalPositions,
    build_norm,
    choose_kernels,
)
from ..modules.padding import padding_back, padding_last
from .fork_names import rename_transformer_ls
from .stack import DECODER_POSITIONS, build_layers, is_pre_norm, positions_kind, whole_numbers
from .vocabulary import check_size, check_tokens, embed


def cutoffs(text: str, option: str, words: int) -> list[int]:
    """The numbers of an option such as --adaptive-softmax-cutoff, which rise to `words` at most.

    fairseq would run the text, which may come from a checkpoint, as Python.

    Raises:
        UserError: naming the option.
    """
    found = whole_numbers(text.strip("[] "), f"{option} is {text!r}; write whole numbers such as 20000,60000")
    if not all(low < high for low, high in pairwise([*found, words + 1])):
        raise UserError(f"{option} is {text!r}; its numbers must rise, to the dictionary's {words:,} at most")
    return found


class LinearAttentionDecoder(DecodingState, FairseqIncrementalDecoder):
    """A decoder-only stack of layers whose attentions come from a layer plan.

        x = sqrt(D) E[token] + P[position], or [E[token], P[position]];  layers;  logits = norm(x) E^T

    Padding may be on either side of a row. With `incremental_state` the decoder takes the tokens it has
    not seen yet, one or many, so that a prompt can be read in one call; its own state is the number of
    tokens seen.

    Args:
        cfg: a `LanguageModelConfig`.
        dictionary: fairseq's dictionary.
        embed_tokens: the input embedding.
        plan: the mechanisms of each layer.
    """

    def __init__(self, cfg: Any, dictionary: Any, embed_tokens: nn.Module, plan: list[Layer]) -> None:
        super().__init__(dictionary)
        self.embed_tokens = embed_tokens
        self.padding_idx = dictionary.pad()
        width = cfg.decoder_embed_dim
        self.max_target_positions = cfg.max_target_positions
        self.embed_positions = self._positions(cfg)
        self.joined = isinstance(self.embed_positions, InterleavedPositions)
        self.embed_scale = 1.0 if cfg.no_scale_embedding or self.joined else math.sqrt(width)
        self.dropout = FairseqDropout(cfg.dropout)
        self.layers = build_layers(cfg, "decoder", plan)
        self.layer_norm = None
        final_norm = cfg.decoder_final_norm or (cfg.decoder_norm if is_pre_norm(cfg, "decoder") else None)
        if final_norm and not cfg.no_decoder_final_norm:
            self.layer_norm = build_norm(final_norm, width)
        self.adaptive_softmax = self.output_projection = None
        self._build_output(cfg, dictionary)
        choose_kernels(self, cfg.attention_backend)

    def _positions(self, cfg: Any) -> nn.Module | None:
        width, kind = cfg.decoder_embed_dim, positions_kind(cfg, *DECODER_POSITIONS)
        if kind == "none":
            return None
        if kind == "learned":
            longest = cfg.max_target_positions
            return LearnedPositions(longest, width, self.padding_idx, "--max-target-positions")
        if kind == "joined":
            return InterleavedPositions(width - width // 2)
        return SinusoidalPositions(width, self.padding_idx)

    def _build_output(self, cfg: Any, dictionary: Any) -> None:
        width = cfg.decoder_embed_dim
        if cfg.adaptive_softmax_cutoff is not None:
            self.adaptive_softmax = AdaptiveSoftmax(
                len(dictionary),
                width,
                cutoffs(cfg.adaptive_softmax_cutoff, "--adaptive-softmax-cutoff", len(dictionary)),
                dropout=cfg.adaptive_softmax_dropout,
                adaptive_inputs=self.embed_tokens if cfg.tie_adaptive_weights else None,
                factor=cfg.adaptive_softmax_factor,
                tie_proj=cfg.tie_adaptive_proj,
            )
            return
        bias = cfg.decoder_output_bias == "learned"
        self.output_projection = nn.Linear(width, len(dictionary), bias=bias)
        if bias:
            nn.init.zeros_(self.output_projection.bias)
        if cfg.adaptive_input or cfg.no_share_decoder_input_output_embed:
            nn.init.normal_(self.output_projection.weight, mean=0, std=width**-0.5)
        else:
            self.output_projection.weight = self.embed_tokens.weight

    def forward(
        self,
        prev_output_tokens: Tensor,
        encoder_out: None = None,
        incremental_state: dict[str, State] | None = None,
        features_only: bool = False,
        src_lengths: Tensor | None = None,
        next_segment: bool = False,
    ) -> tuple[Tensor, dict[str, list]]:
        """Logits of the token after each position.

        Args:
            prev_output_tokens: `(B, N)` token indices, padding on either side.
            encoder_out: None.
            incremental_state: fairseq's dictionary. The tokens not seen yet are taken from the end of
                `prev_output_tokens`, at least the last one, which may also be given alone.
            features_only: stop before the output projection.
            src_lengths: accepted for fairseq.
            next_segment: all `prev_output_tokens` are new; those that `incremental_state` has seen are not
                given again.

        Returns:
            `(B, N, vocabulary)`, or `(B, N, D)` features; with `incremental_state`, of the new tokens only;
            and a dictionary with the states between layers, each `(N, B, D)`.
        """
        x, extra = self.extract_features(
            prev_output_tokens, incremental_state=incremental_state, next_segment=next_segment
        )
        return (x if features_only else self.output_layer(x)), extra

    def extract_features(
        self,
        prev_output_tokens: Tensor,
        encoder_out: None = None,
        incremental_state: dict[str, State] | None = None,
        next_segment: bool = False,
    ) -> tuple[Tensor, dict[str, list]]:
        """As `forward`, without the output projection."""
        check_tokens(prev_output_tokens)
        state = None if incremental_state is None else self.get_state(incremental_state)
        seen = 0
        if state is not None and not next_segment:
            seen = min(state["seen"], prev_output_tokens.shape[1] - 1)
        tokens = prev_output_tokens[:, seen:] if seen else prev_output_tokens
        tokens, padding_mask, shift = padding_last(tokens, self.padding_idx)
        new = None
        if incremental_state is not None:
            new = self._advance(incremental_state, state, padding_mask, tokens)
        elif isinstance(self.embed_positions, LearnedPositions):
            self.embed_positions.check_length(tokens.shape[1], padding_mask)
        x = self._embed(tokens, new).transpose(0, 1).contiguous()  # avoids a copy in every matmul
        states = [x]
        for layer in self.layers:
            x = layer(x, key_padding_mask=padding_mask, incremental_state=incremental_state, new_tokens=new)
            states.append(x)
        if self.layer_norm is not None:
            x = self.layer_norm(x)
        x, *states = padding_back([x, *states], shift)
        return x.transpose(0, 1), {"attn": [None], "inner_states": states}

    def _embed(self, tokens: Tensor, new: NewTokens | None) -> Tensor:
        """`(B, N)` tokens, all or those of a decoding step, to `(B, N, D)`."""
        x = self.embed_scale * embed(self.embed_tokens, tokens)
        if self.embed_positions is not None:
            if new is not None:
                positions = new.positions
            else:
                positions = torch.arange(tokens.shape[1], device=tokens.device)[None]
            rows = self.embed_positions(positions).to(x.dtype)
            x = torch.cat([x, rows.expand(len(x), -1, -1)], dim=-1) if self.joined else x + rows
        return self.dropout(x)

    def _advance(self, incremental_state, state, padding_mask, tokens) -> NewTokens:
        """Counts the `tokens` of a step, and returns their positions.

        "longest" is as long as any row may be, padding included: the rows are read only once it passes the
        learned positions.
        """
        if state is None:
            none = torch.zeros(len(tokens), dtype=torch.long, device=tokens.device)
            state = {"seen": 0, "longest": 0, "position": none}
        new = NewTokens(padding_mask, state["position"], tokens.shape[1])
        longest = state["longest"] + new.count
        learned = isinstance(self.embed_positions, LearnedPositions)
        if learned and longest > self.embed_positions.max_positions:
            longest = int(new.end.max())
            self.embed_positions.check_length(longest)
        seen = state["seen"] + new.count
        self.set_state(incremental_state, {"seen": seen, "longest": longest, "position": new.end})
        return new

    def output_layer(self, features: Tensor) -> Tensor:
        """`(..., D)` to logits; the features themselves with an adaptive softmax, as in fairseq."""
        return features if self.output_projection is None else self.output_projection(features)

    def max_positions(self) -> int:
        """The longest input fairseq may make, in tokens."""
        return self.max_target_positions

    def upgrade_state_dict_named(self, state_dict: dict[str, Tensor], name: str) -> None:
        """Reads checkpoints of the authors' fork and of fairseq, whose further entries mean nothing here."""
        rename_transformer_ls(state_dict, name)
        check_size(state_dict, f"{name}.embed_tokens.weight", self.dictionary)
        for key in ("version", "embed_positions._float_tensor", "embed_positions.weights"):
            state_dict.pop(f"{name}.{key}", None)
        tied = f"{name}.output_projection.weight"
        if self.output_projection is not None and tied not in state_dict:
            embedding = f"{name}.embed_tokens.weight"
            if embedding in state_dict:
                state_dict[tied] = state_dict[embedding]
