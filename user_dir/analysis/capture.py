"""The inputs of all attentions of a model in a forward pass."""

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from fairseq.modules import MultiheadAttention
from torch import Tensor, nn

from ..attention.base import Attention
from ..errors import UserError

LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")


@dataclass(frozen=True)
class AttentionInput:
    """An attention of a model and its input.

    `name` is `layerI`, counted from 0, or `layerI.J` for attentions in parallel; `x: (N, B, D)`;
    `padding_mask: (B, N)`, True at padding, or None.
    """

    name: str
    module: nn.Module
    x: Tensor
    padding_mask: Tensor | None
    causal: bool


def attentions(model: nn.Module) -> dict[str, nn.Module]:
    """The attentions of `model` by name, see `AttentionInput`; UserError if it has none."""
    found = [
        (match[1], part)
        for name, part in model.named_modules()
        if isinstance(part, Attention | MultiheadAttention) and (match := LAYER.search(f"{name}."))
    ]
    if not found:
        raise UserError(f"the model ({type(model).__name__}) has no attention that could be analysed")
    several, seen = Counter(layer for layer, _ in found), Counter()
    named = {}
    for layer, part in found:
        named[f"layer{layer}.{seen[layer]}" if several[layer] > 1 else f"layer{layer}"] = part
        seen[layer] += 1
    return named


def record_inputs(model: nn.Module, forward: Callable[[], object]) -> list[AttentionInput]:
    """The inputs of all attentions of `model` while `forward` runs it once, layer after layer.

    Raises UserError if the model has no attention.
    """
    found: dict[str, AttentionInput] = {}

    def recording(name: str) -> Callable:
        def record(module: nn.Module, args: tuple, kwargs: dict) -> None:
            x = args[0] if args else kwargs["query"]
            causal = module.causal if isinstance(module, Attention) else kwargs.get("attn_mask") is not None
            found[name] = AttentionInput(name, module, x.detach(), kwargs.get("key_padding_mask"), causal)

        return record

    hooks = [
        module.register_forward_pre_hook(recording(name), with_kwargs=True)
        for name, module in attentions(model).items()
    ]
    try:
        forward()
    finally:
        for hook in hooks:
            hook.remove()
    return list(found.values())
