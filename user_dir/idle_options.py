"""Warnings of options that do nothing in the model of a command."""

import contextlib
import logging
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_DATACLASS_REGISTRY

from .errors import UserError
from .models.layer_plan import replaces_feed_forward
from .models.stack import planned_layers
from .tasks.lra_data import open_lra_data

logger = logging.getLogger(__name__)

NEEDS = (
    ("adaptive_input", "adaptive_input_cutoff"),
    ("adaptive_input", "adaptive_input_factor"),
    ("adaptive_softmax_cutoff", "adaptive_softmax_dropout"),
    ("adaptive_softmax_cutoff", "adaptive_softmax_factor"),
    ("tie_adaptive_weights", "tie_adaptive_proj"),
)
"""Options without which another one does nothing."""
OVERRULED = (
    ("adaptive_input", "share_decoder_input_output_embed"),
    ("adaptive_softmax_cutoff", "decoder_output_bias"),
    ("no_decoder_final_norm", "decoder_final_norm"),
    ("decoder_learned_pos", "absolute_positions"),
    ("no_token_positional_embeddings", "decoder_learned_pos"),
    ("no_token_positional_embeddings", "absolute_positions"),
)
"""Options with which another one does nothing."""


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
        idle = {
            name: f"no layer of the model has {of} attention"
            for name, of in model.idle_options(Namespace(**settings)).items()
        }
        idle |= dict(_options_of_missing_parts(settings, _has_gated_units_alone(model, settings)))
        idle |= dict(_options_without_words(settings))
        idle |= dict(_options_without_pixels(settings))
        flags = {word.partition("=")[0] for word in words if word.startswith("--")}
        for flag in sorted(flags):
            if reason := idle.get(flag.removeprefix("--").replace("-", "_")):
                logger.warning("%s does nothing: %s", flag, reason)


def _has_gated_units_alone(model: Any, settings: Mapping[str, Any]) -> bool:
    """Whether all layers are gated units, without a network behind; UserError for a plan that is invalid."""
    side = _side(settings)
    default = model.default_plan(settings[f"{side}_layers"])
    return all(map(replaces_feed_forward, planned_layers(Namespace(**settings), side, default)))


def _side(settings: Mapping[str, Any]) -> str:
    return "decoder" if "decoder_ffn" in settings else "encoder"


def _options_of_missing_parts(settings: Mapping[str, Any], gated: bool) -> Iterator[tuple[str, str]]:
    """Each option of a part that a model with these settings does not have, and why it has not."""
    side = _side(settings)
    of_ffn = [f"{side}_ffn_activation", f"{side}_ffn_embed_dim"]
    if "pooler_activation_fn" not in settings:  # --activation-fn is that of a masked-LM head, too
        of_ffn.append("activation_fn")
    of_glu = ["glu_dim", "glu_activation", "no_glu_bias"]
    network = settings.get(f"{side}_ffn")
    if gated:
        dropout = ["activation_dropout"] if settings.get("activation_dropout") else []
        for name in [f"{side}_ffn", *of_ffn, *of_glu, *dropout]:
            yield name, "the layers are gated units, without a feed-forward network"
    elif network == "glu":
        for name in of_ffn:
            yield name, f"the layers have a GLU (--{side}-ffn glu)"
    elif network == "ffn":
        for name in of_glu:
            yield name, f"the layers have an FFN (--{side}-ffn ffn)"
    for needed, name in NEEDS:
        if not settings.get(needed):
            yield name, f"it needs --{needed.replace('_', '-')}"
    for stronger, name in OVERRULED:
        if settings.get(stronger):
            yield name, f"--{stronger.replace('_', '-')} overrules it"


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
