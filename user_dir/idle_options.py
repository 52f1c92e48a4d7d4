"""Warnings of options that do nothing in the model of a command."""

import contextlib
import logging
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_DATACLASS_REGISTRY

from conventions.plans import Layer

from .checks.options import options_of_missing_network, options_of_networks, side_of
from .errors import UserError
from .models.layer_plan import replaces_feed_forward
from .models.stack import DECODER_POSITIONS, is_pre_norm, planned_layers, positions_kind
from .tasks.lra_data import open_lra_data

logger = logging.getLogger(__name__)

NEEDS = (
    ("adaptive_input", "adaptive_input_cutoff"),
    ("adaptive_input", "adaptive_input_factor"),
    ("adaptive_softmax_cutoff", "adaptive_softmax_dropout"),
    ("adaptive_softmax_cutoff", "adaptive_softmax_factor"),
    ("tie_adaptive_weights", "tie_adaptive_proj"),
    ("encoder_normalize_before", "no_encoder_final_norm"),
)
"""Options without which another one does nothing, in models that have both."""
OVERRULED = (
    ("adaptive_input", "share_decoder_input_output_embed"),
    ("adaptive_softmax_cutoff", "decoder_output_bias"),
    ("no_decoder_final_norm", "decoder_final_norm"),
    ("decoder_learned_pos", "absolute_positions"),
    ("no_token_positional_embeddings", "decoder_learned_pos"),
    ("no_token_positional_embeddings", "absolute_positions"),
    ("performer_paper", "performer_redraw"),
    *((f"{name}_alpha", f"{name}_{constant}") for name in ("lln", "lln_diag") for constant in "ab"),
)
"""Options with which another one does nothing."""
WITHOUT_HEADS = frozenset({"flash", "flash_quad", "tnn"})
"""Attentions that compute the same whatever the number of heads is."""
WITHOUT_WEIGHTS = WITHOUT_HEADS | {
    *("elu", "norm", "cosformer", "performer", "lln"),
    *("retention", "lightning", "gated"),
    *("nystromformer", "skyformer"),
}
"""Attentions that form no weights to drop; a user's own is taken to form some."""


def note_idle_options(given: Namespace, words: Sequence[str]) -> None:
    """Warn of options in a command's `words` that belong to a part or an attention that the model lacks.

    `given` are the words as fairseq reads them; the rest is filled in here with the model's defaults.
    """
    arch = getattr(given, "arch", None)
    model = ARCH_MODEL_REGISTRY.get(arch)
    if not hasattr(model, "idle_options"):
        return
    settings = {**vars(MODEL_DATACLASS_REGISTRY[arch]()), **vars(given)}
    with contextlib.suppress(UserError):  # a plan that cannot be read is refused when the model is built
        layers = _layers(model, settings)
        idle = dict(_options_of_missing_parts(settings, all(map(replaces_feed_forward, layers))))
        idle |= dict(_options_of_other_attentions(settings, {name for names in layers for name in names}))
        idle |= dict(_options_without_words(settings))
        idle |= dict(_options_without_pixels(settings))
        idle |= {
            name: f"no layer of the model has {of} attention"
            for name, of in model.idle_options(Namespace(**settings)).items()
        }
        flags = {word.partition("=")[0] for word in words if word.startswith("--")}
        for flag in sorted(flags):
            if reason := idle.get(flag.removeprefix("--").replace("-", "_")):
                logger.warning("%s does nothing: %s", flag, reason)


def _layers(model: Any, settings: Mapping[str, Any]) -> list[Layer]:
    """The attentions of each layer; UserError for a plan that is invalid."""
    side = side_of(settings)
    return planned_layers(Namespace(**settings), side, model.default_plan(settings[f"{side}_layers"]))


def _options_of_missing_parts(settings: Mapping[str, Any], gated: bool) -> Iterator[tuple[str, str]]:
    """Each option of a part that a model with these settings does not have, and why it has not.

    `gated`: all layers are gated units, without a network behind them.
    """
    side = side_of(settings)
    if gated:
        dropout = ["activation_dropout"] if settings.get("activation_dropout") else []
        for name in [f"{side}_ffn", *options_of_networks(settings), *dropout]:
            yield name, "the layers are gated units, without a feed-forward network"
    else:
        yield from options_of_missing_network(settings).items()
    for needed, name in NEEDS:
        if not settings.get(needed, True):
            yield name, f"it needs --{needed.replace('_', '-')}"
    for stronger, name in OVERRULED:
        if settings.get(stronger):
            yield name, f"--{stronger.replace('_', '-')} overrules it"
    if side == "decoder":
        yield from _options_of_a_decoder(settings)


def _options_of_a_decoder(settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Each option of the embeddings or the final norm that a decoder with these settings does not have."""
    cfg = Namespace(**settings)
    if not (is_pre_norm(cfg, "decoder") or cfg.decoder_final_norm):
        yield "no_decoder_final_norm", "post-norm layers have no norm after them without --decoder-final-norm"
    if positions_kind(cfg, *DECODER_POSITIONS) == "joined":
        yield "no_scale_embedding", "embeddings beside joined positions are not scaled"


def _options_of_other_attentions(settings: Mapping[str, Any], names: set[str]) -> Iterator[tuple[str, str]]:
    """Each option that does nothing in a model with the attentions `names`, and why."""
    side = side_of(settings)
    if names <= WITHOUT_WEIGHTS and settings["attention_dropout"]:
        yield "attention_dropout", "no attention of the model forms weights to drop"
    if names <= WITHOUT_HEADS and settings[f"{side}_attention_heads"] > 1:
        yield f"{side}_attention_heads", "no attention of the model has heads"
    if side == "encoder":
        yield "transformer_ls_chunk", "an encoder pools the whole sequence"


def _options_without_words(settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Each option of the outputs that does nothing in a model of pixels, and why; none of other models."""
    if "pixel_head" not in settings:
        return
    names = ("adaptive_softmax_cutoff", "adaptive_softmax_dropout", "adaptive_softmax_factor")
    for name in ("decoder_output_bias", *names):
        yield name, "a model of pixels has no vocabulary"
    if settings["pixel_head"] != "logistic":
        yield "mixtures", "it needs --pixel-head logistic"


def _options_without_pixels(settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Each option of pixels, or of a table, that an encoder of Long Range Arena lacks, and why.

    UserError where the data cannot be read, as when they are opened.
    """
    if "pixel_input" not in settings or not settings.get("data"):
        return
    linear = settings["pixel_input"] == "linear"
    if open_lra_data(Path(settings["data"])).inputs != ("pixels",):
        for name in ("pixel_input", "pixel_mean", "pixel_std", "mask_zero_pixels"):
            yield name, "the data have no pixels"
    elif linear:
        yield "vocabulary_size", "pixels have no table (--pixel-input linear)"
    else:
        for name in ("pixel_mean", "pixel_std"):
            yield name, "it needs --pixel-input linear"
