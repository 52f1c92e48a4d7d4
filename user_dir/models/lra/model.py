"""Encoders for Long Range Arena (Tay et al. 2021): classify a sequence, or match two."""

import copy
from typing import Any

import torch
from fairseq.models import BaseFairseqModel
from fairseq.modules import FairseqDropout
from torch import Tensor, nn

from causal_linear_attention.chunked import accumulation_dtype

from ...attention.diag import DiagAttention
from ...attention.norm import NormAttention
from ...errors import UserError, check_choice
from ...modules import GatedRMSNorm, build_norm, choose_kernels, tell_padding
from ..attention_statistics import log_attention_statistics
from ..options import check_numbers
from ..stack import Planned, build_layers, check_reach, planned_layers
from .input import LRAInput

POOLINGS = ("mean", "padded-mean", "cls", "last")
FROM_DATA = ("max_positions", "glu_dim", "classifier_dim")
"""Settings that are filled in where they are left open."""
PAIR_FEATURES = 4  # x1, x2, their product and their difference


class LRAModel(Planned, BaseFairseqModel):
    """Embedding, the layers of a plan, one pooled vector per sequence, and a classifier.

    A pair goes through the same layers, each sequence on its own, and the classifier reads
    `[x1, x2, x1 * x2, x1 - x2]`. Padding never affects the logits. Architectures are subclasses with a
    default plan.

    Args:
        cfg: an `LRAConfig` whose open fields are filled in, see `build_model`.
        dictionary: fairseq's dictionary, None for pixels.
        classes: how many.
        inputs: sequences an example has, 1 or 2.
    """

    def __init__(self, cfg: Any, dictionary: Any | None, classes: int, inputs: int) -> None:
        super().__init__()
        width = cfg.encoder_embed_dim
        self.longest, self.pooling = cfg.max_positions, cfg.pooling
        self.mask_zero_pixels = cfg.mask_zero_pixels and dictionary is None
        self.input = LRAInput(cfg, dictionary)
        dropout = cfg.dropout if cfg.embedding_dropout is None else cfg.embedding_dropout
        self.dropout = FairseqDropout(dropout)
        self.cls = nn.Parameter(torch.randn(width) * width**-0.5) if cfg.pooling == "cls" else None
        self.layers = _layers(cfg, type(self).default_plan(cfg.encoder_layers))
        self.layer_norm = None if cfg.no_encoder_final_norm else build_norm(cfg.encoder_norm, width)
        choose_kernels(self, cfg.attention_backend)
        self.classifier = _classifier(width * (1 if inputs == 1 else PAIR_FEATURES), cfg, classes)

    @classmethod
    def build_model(cls, cfg: Any, task: Any) -> "LRAModel":
        """The model that `cfg` describes for the data of `task`; raises UserError if it is invalid."""
        check_numbers(cfg)
        check_choice("--pooling is", cfg.pooling, POOLINGS)
        check_choice("--transnormer-parts is", cfg.transnormer_parts, ("paper", "state-space"))
        if cfg.max_positions is None:
            cfg.max_positions = 1 << (task.data.length - 1).bit_length()
        if cfg.glu_dim is None:  # with three matrices, the size of an ffn of twice the width
            cfg.glu_dim = int(4 / 3 * cfg.encoder_embed_dim)
        if cfg.classifier_dim is None:
            cfg.classifier_dim = cfg.encoder_embed_dim if len(task.data.inputs) == 2 else 0
        cls.fill_in_options(cfg)
        layers = planned_layers(cfg, "encoder", cls.default_plan(cfg.encoder_layers))
        check_reach(cfg, layers, None if cfg.mask_zero_pixels else task.data.length + (cfg.pooling == "cls"))
        model = cls(cfg, task.source_dictionary, len(task.data.classes), len(task.data.inputs))
        model.filled_in = {name: getattr(cfg, name) for name in FROM_DATA}
        log_attention_statistics(model, model.layers, cfg.log_attention_statistics)
        return model

    def note_data(self, cfg: Any) -> None:
        """Write the settings from the data into the configuration that checkpoints hold (ours is a copy)."""
        for name, value in self.filled_in.items():
            setattr(cfg, name, value)

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Tensor,
        other_tokens: Tensor | None = None,
        other_lengths: Tensor | None = None,
    ) -> Tensor:
        """Logits `(B, classes)`.

        Args:
            src_tokens: `(B, N)` dictionary indices with padding at the end, or grey values.
            src_lengths: `(B,)` real positions of each row.
            other_tokens, other_lengths: the second sequences of pairs.
        """
        x = self.encode(src_tokens, src_lengths)
        if other_tokens is not None:
            other = self.encode(other_tokens, other_lengths)
            x = torch.cat([x, other, x * other, x - other], dim=-1)
        return self.classifier(x)

    def encode(self, values: Tensor, lengths: Tensor) -> Tensor:
        """The pooled vectors `(B, D)` of sequences `(B, N)`; raises UserError for one that is too long."""
        if values.shape[1] > self.longest:
            raise UserError(
                f"a sequence of {values.shape[1]} positions is longer than the {self.longest} of the model; "
                "prepare shorter ones, or train with a larger --max-positions"
            )
        x = self.input(values)
        if self.mask_zero_pixels:
            x, lengths = _without_black(x, values)
        if self.cls is not None:
            x = torch.cat([self.cls.to(x.dtype).expand(len(x), 1, -1), x], dim=1)
            lengths = lengths + 1
        padding_mask = torch.arange(x.shape[1], device=x.device) >= lengths[:, None]
        x = self.dropout(x).masked_fill(padding_mask.unsqueeze(-1), 0.0)
        x = self._through_layers(x.transpose(0, 1), padding_mask if padding_mask.any() else None)
        return self._pool(x.transpose(0, 1), padding_mask, lengths)

    def _through_layers(self, x: Tensor, padding_mask: Tensor | None) -> Tensor:
        tell_padding(self, padding_mask)
        for layer in self.layers:
            x = layer(x, key_padding_mask=padding_mask)
        return x if self.layer_norm is None else self.layer_norm(x)

    def _pool(self, x: Tensor, padding_mask: Tensor, lengths: Tensor) -> Tensor:
        if self.pooling == "cls":
            return x[:, 0]
        if self.pooling == "last":
            return x[torch.arange(len(x), device=x.device), (lengths - 1).clamp(min=0)]
        wide = x.masked_fill(padding_mask.unsqueeze(-1), 0.0).to(accumulation_dtype(x.dtype))
        if self.pooling == "padded-mean":
            return (wide.sum(1) / self.longest).to(x.dtype)
        return (wide.sum(1) / lengths.clamp(min=1).unsqueeze(-1)).to(x.dtype)

    def max_positions(self) -> int:
        """The longest sequence."""
        return self.longest


def _without_black(x: Tensor, pixels: Tensor) -> tuple[Tensor, Tensor]:
    """The vectors `(B, N, D)` of pixels that are not 0 in front, cut to the longest row; and how many."""
    black = pixels.eq(0)
    lengths = (~black).sum(1)
    order = black.long().argsort(dim=1, stable=True)[:, : max(1, int(lengths.max()))]
    return x.gather(1, order.unsqueeze(-1).expand(-1, -1, x.shape[2])), lengths


def _layers(cfg: Any, default_plan: str) -> nn.ModuleList:
    plan = planned_layers(cfg, "encoder", default_plan)
    if cfg.pooling == "cls":
        cfg = copy.copy(cfg)
        cfg.max_positions += 1
    if cfg.transnormer_parts == "paper":
        return build_layers(cfg, "encoder", plan)
    return build_layers(cfg, "encoder", plan, _use_state_space_parts)


def _use_state_space_parts(layer: nn.Module) -> None:
    """Give a layer's diag and norm attention the parts that the authors' code for the benchmark has."""
    for attention in layer.self_attn.modules():
        if not isinstance(attention, DiagAttention | NormAttention):
            continue
        if attention.urpe is not None:
            attention.urpe.theta.requires_grad_(False)
            attention.urpe.v.data.zero_()  # no reflection
        if attention.norm is not None:
            width = attention.embed_dim
            is_diag = isinstance(attention, DiagAttention)
            attention.norm = GatedRMSNorm(width) if is_diag else build_norm("batchnorm", width)


def _classifier(width: int, cfg: Any, classes: int) -> nn.Module:
    if not cfg.classifier_dim:
        return nn.Linear(width, classes)
    return nn.Sequential(
        nn.Linear(width, cfg.classifier_dim), nn.ReLU(), nn.Linear(cfg.classifier_dim, classes)
    )
