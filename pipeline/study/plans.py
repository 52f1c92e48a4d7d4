"""The layer plans of a study, checked before anything is imported that takes seconds.

The names are read from the files that register them; the process of a cell checks the plan again.
"""

import re
from collections.abc import Iterable
from functools import cache

from pipeline.errors import UserError
from pipeline.files import ROOT
from pipeline.study.cells import Cell
from pipeline.study.notation import nearest
from pipeline.training.recipe import option

REGISTERED = re.compile(r'^@register_attention\("([\w+-]+)"', re.MULTILINE)
WORD = re.compile(r'^    "([\w-]+)": PlanWord\(', re.MULTILINE)
ITEM = re.compile(r"\s*([\w-]+(?:\s*\+\s*[\w-]+)*)\s*(?:\*\s*([1-9]\d*))?\s*")


@cache
def attention_names() -> frozenset[str]:
    """Every name that a layer plan may use."""
    files = (ROOT / "user_dir" / "attention").glob("*.py")
    return frozenset(name for path in files for name in REGISTERED.findall(path.read_text(encoding="utf-8")))


@cache
def plan_words() -> frozenset[str]:
    """The words that are a whole plan."""
    text = (ROOT / "user_dir" / "models" / "plan_words.py").read_text(encoding="utf-8")
    return frozenset(WORD.findall(text))


def check_layer_plans(cells: Iterable[Cell]) -> None:
    """UserError for a cell whose layer plan names no attention, or has another number of layers."""
    for cell in cells:
        given = [*cell.experiment.flags(), *cell.own_flags()]
        side = cell.plan_setting().removesuffix("_attention")
        plan, layers = option(given, f"--{side}-attention"), option(given, f"--{side}-layers")
        if plan:
            check_plan(
                plan, int(layers) if (layers or "").isdecimal() else None, f"{cell.name}: the layer plan"
            )


def check_plan(plan: str, layers: int | None, where: str) -> None:
    """UserError for a plan that cannot be that of a model with so many layers."""
    if plan.strip() in plan_words():
        return
    count = 0
    for item in plan.split(","):
        match = ITEM.fullmatch(item)
        if not match:
            raise UserError(f"{where} {plan!r} has the part {item!r}; write one such as 'diag*3,norm*3'")
        for name in re.split(r"\s*\+\s*", match[1]):
            if name in plan_words():
                raise UserError(f"{where} {plan!r} names {name!r}, a plan for all layers; write it alone")
            if name not in attention_names():
                known = sorted(attention_names() | plan_words())
                raise UserError(f"{where} {plan!r} names {name!r}{nearest(name, known)}")
        count += int(match[2] or (layers or 1 if item == plan else 1))
    if layers is not None and count != layers:
        raise UserError(f"{where} {plan!r} describes {count} layers, but the model has {layers}")
