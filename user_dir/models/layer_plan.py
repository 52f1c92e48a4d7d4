"""The layer plan: which attention each layer has, as one short text.

plan  = item {"," item}            diag*3,norm*3      three layers of diag, then three of norm
item  = layer ["*" count]
layer = name {"+" name}            diag+norm*6        both side by side in each of six layers

A layer alone, without a count, is that of the whole model: `lln` is lln in every layer. A word of
`PLAN_WORDS`, such as `transnormer_t1`, is a whole plan with options of its mechanisms.
"""

import re
from difflib import get_close_matches

from torch import nn

from ..attention import ParallelAttention, attention_class, attention_names, build_attention
from ..errors import UserError
from .plan_words import PLAN_WORDS

Layer = tuple[str, ...]


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
    if word := PLAN_WORDS.get(plan.strip()):
        plan = word.plan(num_layers)
    layers: list[Layer] = []
    start = 0
    for item in plan.split(","):
        body, star, count = item.partition("*")
        at = f"at character {start + 1} of the layer plan {plan!r} ({option})"
        if star and not re.fullmatch(r"\s*[1-9][0-9]{0,5}\s*", count):
            raise UserError(f"{count.strip()!r} is not a number of layers {at}; {_grammar(causal)}")
        names = tuple(name.strip() for name in body.split("+"))
        _check_names(names, causal, at)
        alone = num_layers if plan == body else 1
        layers += [names] * (int(count) if star else alone)
        start += len(item) + 1
    if len(layers) != num_layers:
        raise UserError(
            f"the layer plan {plan!r} ({option}) describes {len(layers)} layers up to character "
            f"{len(plan)}, but the model has {num_layers}; {_grammar(causal)}"
        )
    return layers


def _check_names(names: Layer, causal: bool, at: str) -> None:
    for name in names:
        if name in PLAN_WORDS:
            raise UserError(f"{name!r} is a plan for all layers {at}; write it alone")
        if name not in attention_names():
            raise UserError(f"{name!r} is not an attention {at}{_nearest(name, causal)}; {_grammar(causal)}")
        if name not in attention_names(causal):
            form = "causal" if causal else "bidirectional"
            raise UserError(f"{name!r} has no {form} form {at}; {_grammar(causal)}")
        if len(names) > 1 and attention_class(name).replaces_feed_forward:
            raise UserError(
                f"{name!r} is a whole layer, feed-forward network included, and cannot run in parallel "
                f"with another attention {at}; write it alone"
            )


def _nearest(name: str, causal: bool) -> str:
    near = get_close_matches(name, [*attention_names(causal), *PLAN_WORDS], n=1)
    return f"; did you mean {near[0]}?" if near else ""


def _grammar(causal: bool) -> str:
    return (
        f"names are {', '.join(attention_names(causal))}, "
        "written like 'diag*3,norm*3' or, in parallel, 'diag+norm*6'; "
        f"{' and '.join(PLAN_WORDS)} are whole plans"
    )


def replaces_feed_forward(layer: Layer) -> bool:
    """Whether the layer is a gated unit that needs no feed-forward network behind it."""
    return attention_class(layer[0]).replaces_feed_forward


def build_layer_attention(
    layer: Layer,
    embed_dim: int,
    num_heads: int,
    *,
    causal: bool,
    dropout: float,
    backend: str,
    max_positions: int,
    options: dict[str, dict[str, object]],
) -> nn.Module:
    """The attention of one layer; `options` maps a mechanism's name to its options."""
    parts = [
        build_attention(
            name,
            embed_dim,
            num_heads,
            causal=causal,
            dropout=dropout,
            backend=backend,
            max_positions=max_positions,
            **options.get(name, {}),
        )
        for name in layer
    ]
    return parts[0] if len(parts) == 1 else ParallelAttention(parts)
