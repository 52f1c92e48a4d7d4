"""The layer plan of a model: its mechanisms are checked, and their options filled in.

`conventions/plans.py` has the grammar; `stack.py` decides which plan a model has.
"""

from collections.abc import Mapping
from typing import Any

from conventions.plans import PLAN_WORDS, Layer, check_name, read_plan

from ..attention import attention_class, attention_names
from ..errors import UserError


def parse_layer_plan(plan: str, num_layers: int, option: str, causal: bool) -> list[Layer]:
    """The names of each layer's mechanisms, one tuple a layer.

    Args:
        plan: the text, such as "diag*3,norm*3".
        num_layers: how many layers it must describe.
        option: the option to name in errors, such as "--decoder-attention".
        causal: whether mechanisms need a causal form, or else a bidirectional one.

    Raises:
        UserError: showing the plan, the position of the fault and the allowed names.
    """
    allowed = attention_names(causal)
    items = read_plan(plan, num_layers, option, allowed)
    for item in items:
        for name in item.layer:
            if name in attention_names() and name not in allowed:
                form = "causal" if causal else "bidirectional"
                raise UserError(f"{name!r} has no {form} form {item.at}; choose from {', '.join(allowed)}")
            check_name(name, allowed, item.at)
            if len(item.layer) > 1 and attention_class(name).replaces_feed_forward:
                raise UserError(
                    f"{name!r} is a whole layer, feed-forward network included, and cannot run in parallel "
                    f"with another attention {item.at}; write it alone"
                )
    return [item.layer for item in items for _ in range(item.count)]


def fill_in_options(cfg: Any, defaults: Mapping[str, object]) -> None:
    """Give the open options of a model's configuration their plan's values, or else `defaults`.

    Tied embeddings that are asked for count more than the default.

    Training does so before anything is compared or saved, so that a checkpoint holds them.
    """
    plan = getattr(cfg, "decoder_attention", None) or getattr(cfg, "encoder_attention", None)
    word = PLAN_WORDS.get((plan or "").strip())
    if getattr(cfg, "share_decoder_input_output_embed", False):
        defaults = {**defaults, "no_share_decoder_input_output_embed": False}
    for name, value in {**defaults, **(word.options if word else {})}.items():
        if getattr(cfg, name, None) is None:
            setattr(cfg, name, value)


def replaces_feed_forward(layer: Layer) -> bool:
    """Whether the layer is a gated unit that needs no feed-forward network behind it."""
    return attention_class(layer[0]).replaces_feed_forward
