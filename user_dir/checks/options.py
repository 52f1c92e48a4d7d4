"""Options of a model whose defaults follow from others, or that do nothing in it."""

import contextlib
import logging
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_DATACLASS_REGISTRY

from ..errors import UserError

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


def fill_in_options(cfg: Any, arch: str | None) -> None:
    """Let the model `arch` fill in the open settings of its configuration, so that checkpoints hold them.

    (Building the model is too late: fairseq gives it a copy of the configuration.) UserError for a norm that
    lets a decoder see what is to come.
    """
    fill_in = getattr(ARCH_MODEL_REGISTRY.get(arch), "fill_in_options", None)
    if fill_in is not None:
        fill_in(cfg)
    if getattr(cfg, "decoder_final_norm", None) == "batchnorm":
        raise UserError(
            "--decoder-final-norm batchnorm takes its statistics from positions to come as well; "
            "choose another norm"
        )


def note_idle_options(given: Namespace, arch: str | None, words: Sequence[str]) -> None:
    """Warn of options in a command's `words` that belong to an attention or another part that `arch` lacks.

    `given` are the words as fairseq reads them; the rest is filled in here with the model's defaults.
    """
    find = getattr(ARCH_MODEL_REGISTRY.get(arch), "idle_options", None)
    if find is None:
        return
    settings = {**vars(MODEL_DATACLASS_REGISTRY[arch]()), **vars(given)}
    with contextlib.suppress(UserError):  # a plan that cannot be read is refused when the model is built
        idle = {
            name: f"no layer of the model has {of} attention"
            for name, of in find(Namespace(**settings)).items()
        }
        idle |= dict(_options_of_missing_parts(settings))
        flags = {word.partition("=")[0] for word in words if word.startswith("--")}
        for flag in sorted(flags):
            if reason := idle.get(flag.removeprefix("--").replace("-", "_")):
                logger.warning("%s does nothing: %s", flag, reason)


def _options_of_missing_parts(settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Each option of a part that a model with these settings does not have, and why it has not."""
    side = "decoder" if "decoder_ffn" in settings else "encoder"
    network = settings.get(f"{side}_ffn")
    if network == "glu":
        names = [f"{side}_ffn_activation", f"{side}_ffn_embed_dim"]
        if "pooler_activation_fn" not in settings:  # --activation-fn is that of a masked-LM head, too
            names.append("activation_fn")
        for name in names:
            yield name, f"the layers have a GLU (--{side}-ffn glu)"
    elif network == "ffn":
        for name in ("glu_dim", "glu_activation", "no_glu_bias"):
            yield name, f"the layers have an FFN (--{side}-ffn ffn)"
    for needed, name in NEEDS:
        if not settings.get(needed):
            yield name, f"it needs --{needed.replace('_', '-')}"
    for stronger, name in OVERRULED:
        if settings.get(stronger):
            yield name, f"--{stronger.replace('_', '-')} overrules it"
