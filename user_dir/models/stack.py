"""The layers of a plan, as decoder and encoder stack them."""

from collections.abc import Callable
from dataclasses import fields
from functools import partial
from typing import Any

import torch
from fairseq.distributed import fsdp_wrap
from fairseq.distributed.utils import get_data_parallel_world_size
from fairseq.modules import LayerDropModuleList
from fairseq.modules.checkpoint_activations import checkpoint_wrapper
from torch import Tensor, nn

from conventions.plans import Layer

from ..attention import ParallelAttention, attention_class, attention_names, build_attention
from ..errors import UserError, check_choice
from ..modules import GLU, FeedForward, tell_padding
from ..modules.feed_forward import default_glu_width
from .layer import GatedLayer, TransformerLayer
from .layer_plan import parse_layer_plan, replaces_feed_forward
from .options import attention_options


class Planned:
    """Base of the models of a layer plan; their architectures set the two functions."""

    default_plan: Callable[[int], str]
    fill_in_options: Callable[[Any], None]

    @classmethod
    def idle_options(cls, cfg: Any) -> dict[str, str]:
        """The options of mechanisms that no layer has, each with its mechanism; UserError as below."""
        side = "decoder" if hasattr(cfg, "decoder_layers") else "encoder"
        layers = planned_layers(cfg, side, cls.default_plan(getattr(cfg, f"{side}_layers")))
        used = {name for names in layers for name in names}
        return {
            f"{name}_{option.name}": name
            for name in attention_names()
            if name not in used
            for option in fields(attention_class(name).Options)
        }


def planned_layers(cfg: Any, side: str, default: str) -> list[Layer]:
    """The layers that the plan of `cfg` (or `default`) describes, less those pruned away.

    Args:
        cfg: a `LanguageModelConfig` or an `EncoderConfig`.
        side: "decoder" or "encoder", with which its fields begin.
        default: the plan where `cfg` has none.

    Raises:
        UserError: for a plan that is invalid or does not fit.
    """
    plan = getattr(cfg, f"{side}_attention") or default
    option, count = f"--{side}-attention", getattr(cfg, f"{side}_layers")
    layers = parse_layer_plan(plan, count, option, causal=side == "decoder")
    return _kept(layers, getattr(cfg, f"{side}_layers_to_keep"), side)


def layer_places(cfg: Any, side: str) -> list[tuple[int, int]]:
    """The number, from 0, of each layer that pruning keeps, and how many there are before pruning."""
    count = getattr(cfg, f"{side}_layers")
    return _kept([(number, count) for number in range(count)], getattr(cfg, f"{side}_layers_to_keep"), side)


def check_reach(cfg: Any, layers: list[Layer], longest: int | None) -> None:
    """UserError where the `longest` sample, if it is known, is longer than cosFormer's distance."""
    length = getattr(cfg, "cosformer_length", None)
    if length and longest and length < longest and any("cosformer" in names for names in layers):
        raise UserError(
            f"--cosformer-length is {length}, less than the {longest} tokens of the longest sample; raise "
            "it, or leave it out"
        )


def block_length(task: Any) -> int | None:
    """How long the samples are into which a task cuts its text; None where they are lines or documents."""
    settings = getattr(task, "cfg", None) or getattr(task, "args", None)  # fairseq has either
    blocks = getattr(settings, "sample_break_mode", None) in ("none", "complete")
    return getattr(settings, "tokens_per_sample", None) if blocks else None


def _kept(layers: list, keep: str | None, side: str) -> list:
    """The layers, or their places, that stay after pruning, all of them without `keep`."""
    if not keep:
        return layers
    wrong = f"--{side}-layers-to-keep is {keep!r}; write the numbers of layers, such as 0,2,4"
    indices = sorted({*whole_numbers(keep, wrong)})
    if indices[-1] >= len(layers):
        raise UserError(
            f"--{side}-layers-to-keep names layer {indices[-1]}, but the last of {len(layers)} layers is "
            f"{len(layers) - 1}"
        )
    return [layers[i] for i in indices]


def whole_numbers(text: str, wrong: str) -> list[int]:
    """The comma-separated numbers of 0 or more in `text`; UserError with the message `wrong` for others."""
    words = text.split(",")
    if not all(word.strip().isdecimal() for word in words):
        raise UserError(wrong)
    return [int(word) for word in words]


def build_layers(
    cfg: Any, side: str, plan: list[Layer], adapt: Callable[[nn.Module], None] = lambda layer: None
) -> nn.ModuleList:
    """The layers of `plan`, with layer drop if `cfg` asks for it; arguments as for `planned_layers`.

    `adapt` may change a layer before it is wrapped for activation checkpointing and FSDP.
    """
    drop = getattr(cfg, f"{side}_layerdrop")
    if drop > 0:
        check_layer_drop(plan, side)
    layers = LayerDropModuleList(p=drop) if drop > 0 else nn.ModuleList()
    for names, place in zip(plan, layer_places(cfg, side), strict=True):
        layer = _build_layer(cfg, side, names, place)
        adapt(layer)
        layers.append(_wrapped(layer, cfg))
    return layers


def check_layer_drop(plan: list[Layer], side: str) -> None:
    """UserError where processes would drop different layers, and those with common statistics wait for ever.

    On the CPU they are drawn by the generator that dropout has used before, as often as its batch is long.
    """
    together = any(name.startswith("lln") for names in plan for name in names)
    if together and get_data_parallel_world_size() > 1 and not torch.cuda.is_available():
        raise UserError(
            f"--{side}-layerdrop drops other layers in each process on the CPU, but LLN attention takes its "
            "statistics from all of them; train in one process, or without layer drop"
        )


def _build_layer(cfg: Any, side: str, layer: Layer, place: tuple[int, int]) -> nn.Module:
    width, norm = getattr(cfg, f"{side}_embed_dim"), getattr(cfg, f"{side}_norm")
    causal = side == "decoder"
    if causal and norm == "batchnorm":
        raise UserError(
            "--decoder-norm batchnorm takes its statistics from positions to come as well; "
            "choose one of layernorm, rmsnorm, weighted_rmsnorm, scalenorm"
        )
    max_positions = cfg.max_target_positions if causal else cfg.max_positions
    attention = build_layer_attention(cfg, side, layer, place, max_positions)
    if replaces_feed_forward(layer):
        if causal and not is_pre_norm(cfg, side):
            raise UserError(
                "--decoder-norm-position post does not fit FLASH, whose norm comes before its gated unit; "
                "leave it out"
            )
        return GatedLayer(attention, width, norm)
    feed_forward = _build_feed_forward(cfg, side)
    return TransformerLayer(attention, width, feed_forward, norm, cfg.dropout, is_pre_norm(cfg, side))


def build_layer_attention(
    cfg: Any, side: str, layer: Layer, place: tuple[int, int], max_positions: int | None
) -> nn.Module:
    """The attention of one layer of a model that `cfg` describes; see `build_attention` for the rest."""
    options = attention_options(cfg)
    parts = [
        build_attention(
            name,
            getattr(cfg, f"{side}_embed_dim"),
            getattr(cfg, f"{side}_attention_heads"),
            causal=side == "decoder",
            dropout=cfg.attention_dropout,
            backend=cfg.attention_backend,
            max_positions=max_positions,
            place=place,
            **options.get(name, {}),
        )
        for name in layer
    ]
    return parts[0] if len(parts) == 1 else ParallelAttention(parts)


def _build_feed_forward(cfg: Any, side: str) -> nn.Module:
    kind, width = getattr(cfg, f"{side}_ffn"), getattr(cfg, f"{side}_embed_dim")
    check_choice("unknown feed-forward network", kind, ("glu", "ffn"))
    if kind == "glu":
        inner = cfg.glu_dim or default_glu_width(width)
        return GLU(width, inner, cfg.glu_activation, cfg.activation_dropout, bias=not cfg.no_glu_bias)
    activation = getattr(cfg, f"{side}_ffn_activation", None) or cfg.activation_fn
    return FeedForward(width, getattr(cfg, f"{side}_ffn_embed_dim"), activation, cfg.activation_dropout)


def is_pre_norm(cfg: Any, side: str) -> bool:
    """Whether the norms of the layers come before their parts; UserError for an unknown position."""
    if side == "encoder":
        # Long Range Arena's encoders lack the option: they are pre-norm.
        return getattr(cfg, "encoder_normalize_before", True)
    check_choice("--decoder-norm-position is", cfg.decoder_norm_position, ("pre", "post"))
    return cfg.decoder_norm_position == "pre"


# Choices of a decoder's --absolute-positions; the first is the default.
DECODER_POSITIONS = ("sinusoidal", "learned", "none", "joined")


def positions_kind(cfg: Any, *kinds: str) -> str:
    """Which absolute positions `cfg` asks for, one of `kinds`, by default the first.

    Raises UserError for another.
    """
    if cfg.no_token_positional_embeddings:
        return "none"
    if getattr(cfg, "decoder_learned_pos", False):
        return "learned"
    kind = cfg.absolute_positions or kinds[0]
    check_choice("--absolute-positions is", kind, kinds)
    return kind


def _wrapped(layer: nn.Module, cfg: Any) -> nn.Module:
    """For activation checkpointing and FSDP, as fairseq's own layers are."""
    if cfg.checkpoint_activations or cfg.offload_activations:
        layer.forward = partial(_forward_with_its_padding, layer, layer.forward)
        layer = checkpoint_wrapper(layer, offload_to_cpu=cfg.offload_activations)
        return fsdp_wrap(layer, min_num_params=0)  # a checkpointed layer is wrapped whatever its size
    return fsdp_wrap(layer, min_num_params=cfg.min_params_to_wrap)


def _forward_with_its_padding(
    layer: nn.Module, forward: Callable, x: Tensor, key_padding_mask: Tensor | None = None, **others: Any
) -> Tensor:
    """The backward pass runs `forward` again, when batch norms may know the padding of a later call."""
    tell_padding(layer, key_padding_mask)
    return forward(x, key_padding_mask=key_padding_mask, **others)
