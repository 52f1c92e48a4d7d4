"""Options of a model whose defaults, or whose effect, follow from others."""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from fairseq.models import ARCH_MODEL_REGISTRY

from ..errors import UserError

NETWORKS = {"ffn": "an FFN", "glu": "a GLU"}


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


def side_of(model: Mapping[str, Any]) -> str:
    """With which the names of a model's options begin."""
    return "decoder" if "decoder_ffn" in model else "encoder"


def options_of_missing_network(model: Mapping[str, Any]) -> dict[str, str]:
    """The options in a model's settings that do nothing in its kind of feed-forward network, and why."""
    side = side_of(model)
    kind = model.get(f"{side}_ffn")
    if kind not in NETWORKS:
        return {}
    reason = f"the layers have {NETWORKS[kind]} (--{side}-ffn {kind})"
    return {name: reason for name, of in options_of_networks(model).items() if of != kind}


def options_of_networks(model: Mapping[str, Any]) -> dict[str, str]:
    """The options of feed-forward networks in a model's settings, with the network that has them."""
    side = side_of(model)
    of_ffn = [f"{side}_ffn_activation", f"{side}_ffn_embed_dim"]
    if "pooler_activation_fn" not in model:  # --activation-fn is that of a masked-LM head, too
        of_ffn.append("activation_fn")
    return dict.fromkeys(of_ffn, "ffn") | dict.fromkeys(("glu_dim", "glu_activation", "no_glu_bias"), "glu")


def nearest(name: str, known: Sequence[str]) -> list[str]:
    """The three of `known` that are most like `name`."""
    return get_close_matches(name, known, 3, 0.0)
