"""The layer plan: which attention each layer has, as one short text; without torch.

plan  = item {"," item}            diag*3,norm*3      three layers of diag, then three of norm
item  = layer ["*" count]
layer = name {"+" name}            diag+norm*6        both side by side in each of six layers

A single layer without a count stands for all layers: `lln` is lln in every layer. A word of
`PLAN_WORDS`, such as `transnormer_t1`, is a whole plan with options of its mechanisms.
"""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches

from conventions import UserError

Layer = tuple[str, ...]
"""The names of the mechanisms of one layer."""


@dataclass(frozen=True)
class PlanWord:
    """A plan for a number of layers, and the options that its mechanisms have unless others are given."""

    plan: Callable[[int], str]
    options: Mapping[str, str] = field(default_factory=dict)


def early_and_late(early: str, late: str) -> Callable[[int], str]:
    """The plan with `early` in the first half of the layers (rounded down) and `late` in the rest."""

    def plan(layers: int) -> str:
        half = layers // 2
        parts = [f"{name}*{count}" for name, count in ((early, half), (late, layers - half)) if count]
        return ",".join(parts)

    return plan


def everywhere(name: str) -> PlanWord:
    """The plan with `name` in every layer."""
    return PlanWord(lambda layers: f"{name}*{layers}")


TRANSNORMER = early_and_late("diag", "norm")
PLAN_WORDS = {
    # Qin et al. 2022, "The Devil in Linear Transformer", Table 13.
    "transnormer_t1": PlanWord(TRANSNORMER, {"diag_activation": "relu", "norm_feature_map": "elu"}),
    "transnormer_t2": PlanWord(TRANSNORMER, {"diag_activation": "softmax", "norm_feature_map": "1+elu"}),
}
OPEN_OPTIONS = frozenset(option for word in PLAN_WORDS.values() for option in word.options)
"""Options whose default depends on the plan; None says that they were not given."""


@dataclass(frozen=True)
class Item:
    """Equal layers of a plan: their mechanisms, how many there are, and where the plan names them."""

    layer: Layer
    count: int
    at: str


def read_plan(plan: str, num_layers: int | None, where: str, allowed: Collection[str]) -> list[Item]:
    """The items of a plan; their names are for `check_name`.

    Args:
        plan: the text, such as "diag*3,norm*3".
        num_layers: how many layers it must describe; None if that is not known.
        where: what errors name, such as "--decoder-attention".
        allowed: the names that a plan may use, for errors.

    Raises:
        UserError: showing the plan, the position of the fault and the allowed names.
    """
    if word := PLAN_WORDS.get(plan.strip()):
        plan = word.plan(num_layers or 1)
    items, start = [], 0
    for text in plan.split(","):
        body, star, count = text.partition("*")
        at = f"at character {start + 1} of the layer plan {plan!r} ({where})"
        if star and not re.fullmatch(r"\s*[1-9][0-9]{0,5}\s*", count):
            raise UserError(f"{count.strip()!r} is not a number of layers {at}; {_grammar(allowed)}")
        alone = (num_layers or 1) if plan == body else 1
        layer = tuple(name.strip() for name in body.split("+"))
        items.append(Item(layer, int(count) if star else alone, at))
        start += len(text) + 1
    layers = sum(item.count for item in items)
    if num_layers not in (None, layers):
        raise UserError(
            f"the layer plan {plan!r} ({where}) describes {layers} layers up to character "
            f"{len(plan)}, but the model has {num_layers}; {_grammar(allowed)}"
        )
    return items


def check_name(name: str, allowed: Collection[str], at: str) -> None:
    """UserError for a `name` that is not `allowed`, with its place `at` in the plan."""
    if name in PLAN_WORDS:
        raise UserError(f"{name!r} is a plan for all layers {at}; write it alone")
    if name not in allowed:
        near = get_close_matches(name, [*allowed, *PLAN_WORDS], n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise UserError(f"{name!r} is not an attention {at}{hint}; {_grammar(allowed)}")


def _grammar(allowed: Collection[str]) -> str:
    return (
        f"names are {', '.join(sorted(allowed))}, "
        "written like 'diag*3,norm*3' or, in parallel, 'diag+norm*6'; "
        f"{' and '.join(PLAN_WORDS)} are whole plans"
    )
