"""Vision Transformers (Dosovitskiy et al. 2021) with the attentions of a layer plan."""

import copy
from dataclasses import dataclass
from typing import Any, Optional

import torch
from fairseq.models import BaseFairseqModel
from fairseq.modules import FairseqDropout
from torch import Tensor, nn

from conventions.plans import everywhere

from ..attention.base import SelfAttention
from ..attention.parts.limits import check_count
from ..errors import UserError, check_choice
from ..modules import LearnedPositions, build_norm, choose_kernels, tell_padding
from .architectures import Architecture
from .attention_statistics import log_attention_statistics
from .config import EncoderConfig, _option
from .options import check_numbers
from .stack import Planned, build_layers, check_reach, planned_layers, positions_kind

POOLINGS = ("cls", "mean")


@dataclass
class ViTConfig(EncoderConfig):
    """A pre-norm encoder of patches, a pooled vector and a linear classifier."""

    patch_size: int = _option(16, "side of a patch, in pixels; a divisor of height and width")
    pooling: str = _option(
        POOLINGS[0], "vector of an image: cls (of an extra first position) or mean (over the patches)"
    )
    embedding_std: float = _option(1.0, "standard deviation with which positions and CLS start")
    no_patch_norm: bool = _option(
        False, "no LayerNorms before and after the linear map of a patch, as in DeiT"
    )
    no_encoder_qkv_bias: bool = _option(False, "queries, keys and values without bias")
    max_positions: Optional[int] = _option(
        None, "positions of the model; filled in: the patches of an image, and one for CLS"
    )


class Patches(nn.Module):
    """`W p + b` of each patch p, its values in [0, 1], between two LayerNorms.

    A patch of one value has no first LayerNorm, which would erase it.

    Args:
        side: of a patch, in pixels.
        channels: of a pixel.
        levels: of a channel.
        width: D.
        norms: whether there are LayerNorms.
    """

    def __init__(self, side: int, channels: int, levels: int, width: int, norms: bool) -> None:
        super().__init__()
        self.side, self.levels = side, levels
        values = side * side * channels
        self.norm_in = nn.LayerNorm(values) if norms and values > 1 else None
        self.linear = nn.Linear(values, width)
        self.norm_out = nn.LayerNorm(width) if norms else None

    def forward(self, images: Tensor) -> Tensor:
        """Levels `(B, height, width, channels)` to `(B, N, D)`, patches row by row."""
        rows = images.unflatten(2, (-1, self.side)).unflatten(1, (-1, self.side))
        x = rows.transpose(2, 3).flatten(3).flatten(1, 2).to(self.linear.weight.dtype) / (self.levels - 1)
        x = self.linear(x if self.norm_in is None else self.norm_in(x))
        return x if self.norm_out is None else self.norm_out(x)


class ViT(Planned, BaseFairseqModel):
    """Patches, CLS, learned positions, the layers of a plan, a norm, and a classifier of the pooled vector.

    Architectures are subclasses with a default plan.

    Args:
        cfg: a `ViTConfig` with its `max_positions` filled in.
        shape: an `ImageShape`.
        classes: how many.
    """

    def __init__(self, cfg: Any, shape: Any, classes: int) -> None:
        super().__init__()
        width, std = cfg.encoder_embed_dim, cfg.embedding_std
        self.patches = Patches(cfg.patch_size, shape.channels, shape.levels, width, not cfg.no_patch_norm)
        self.cls = nn.Parameter(torch.randn(width) * std) if cfg.pooling == "cls" else None
        self.positions = None
        if positions_kind(cfg, "learned", "none") == "learned":
            self.positions = LearnedPositions(cfg.max_positions, width, padding_idx=None)
            nn.init.normal_(self.positions.weight, std=std)
        self.dropout = FairseqDropout(cfg.dropout)
        plan = planned_layers(cfg, "encoder", type(self).default_plan(cfg.encoder_layers))
        check_reach(cfg, plan, cfg.max_positions)
        adapt = _remove_qkv_bias if cfg.no_encoder_qkv_bias else lambda layer: None
        self.layers = build_layers(cfg, "encoder", plan, adapt)
        self.layer_norm = None if cfg.no_encoder_final_norm else build_norm(cfg.encoder_norm, width)
        choose_kernels(self, cfg.attention_backend)
        self.classifier = nn.Linear(width, classes)

    @classmethod
    def build_model(cls, cfg: Any, task: Any) -> "ViT":
        """The model that `cfg` describes for the images of `task`; raises UserError if it is invalid."""
        check_numbers(cfg)
        if not hasattr(task, "classes"):
            raise UserError("the model classifies images; give --task image_classification")
        check_choice("--pooling is", cfg.pooling, POOLINGS)
        side, shape = cfg.patch_size, task.shape
        check_count("--patch-size", side)
        if shape.height % side or shape.width % side:
            raise UserError(
                f"--patch-size is {side}, which does not divide the images' {shape.height} x {shape.width} "
                "pixels; choose a divisor of both"
            )
        cfg = copy.copy(cfg)
        cfg.max_positions = (shape.height // side) * (shape.width // side) + (cfg.pooling == "cls")
        cls.fill_in_options(cfg)
        model = cls(cfg, shape, task.classes)
        log_attention_statistics(model, model.layers, cfg.log_attention_statistics)
        return model

    def forward(self, images: Tensor) -> Tensor:
        """Logits `(B, classes)` of levels `(B, height, width, channels)`."""
        tell_padding(self, None)
        x = self.patches(images)
        if self.cls is not None:
            x = torch.cat([self.cls.to(x.dtype).expand(len(x), 1, -1), x], dim=1)
        if self.positions is not None:
            x = x + self.positions(torch.arange(x.shape[1], device=x.device)).to(x.dtype)
        x = self.dropout(x).transpose(0, 1).contiguous()
        for layer in self.layers:
            x = layer(x)
        if self.layer_norm is not None:
            x = self.layer_norm(x)
        return self.classifier(x.mean(0) if self.cls is None else x[0])


def _remove_qkv_bias(layer: nn.Module) -> None:
    """Take the biases of queries, keys and values out of a layer; UserError for a mechanism without them."""
    found = [part for part in layer.self_attn.modules() if isinstance(part, SelfAttention)]
    if not found:
        raise UserError(
            "--no-encoder-qkv-bias needs mechanisms with maps to queries, keys and values, which gated "
            "units, Reformer and Transformer-LS do not have; leave the option out"
        )
    for attention in found:
        for projection in (attention.q_proj, attention.k_proj, attention.v_proj):
            projection.bias = None


# Settings of all, as in the examples that LLN's authors publish.
COMMON = {"dropout": 0.0, "attention_dropout": 0.0}
# Nahshan et al. 2024, appendix A.8.2 and the authors' code: 12 layers of width 128, patches of 7 pixels.
SMALL_128 = {
    **COMMON,
    "encoder_embed_dim": 128,
    "encoder_attention_heads": 8,
    "encoder_ffn_embed_dim": 512,
    "patch_size": 7,
    "no_encoder_qkv_bias": True,
}
# Touvron et al. 2021, DeiT-tiny.
DEIT_TINY = {
    **COMMON,
    "encoder_embed_dim": 192,
    "encoder_attention_heads": 3,
    "encoder_ffn_embed_dim": 768,
    "embedding_std": 0.02,
    "no_patch_norm": True,
}
ARCHITECTURES = (
    Architecture("vit", everywhere("softmax"), COMMON),
    Architecture("vit_small_128", everywhere("softmax"), SMALL_128),
    Architecture("vit_deit_tiny", everywhere("softmax"), DEIT_TINY),
)
for row in ARCHITECTURES:
    row.register(ViT, ViTConfig)
