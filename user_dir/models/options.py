"""Options of the attention mechanisms as fields of a model's configuration.

Every field of a mechanism's `Options` becomes one of the model, with the mechanism's name in front:
`block_size` of "diag" is `diag_block_size`, on the command line `--diag-block-size`.
"""

import math
from dataclasses import Field, field, fields, make_dataclass
from typing import Any, Optional

from omegaconf import DictConfig

from conventions.plans import OPEN_OPTIONS

from ..attention import attention_class, attention_names
from ..errors import UserError


def with_attention_options(name: str, base: type, causal: bool, **defaults: object) -> type:
    """A dataclass `name` on top of `base` with the options of all mechanisms, and other `defaults`.

    With `causal`, of those that have a causal form. Options whose default depends on the plan are None by
    default. Raises ValueError for a default whose field does not exist.
    """
    own = {f.name: (f.type, f, f.default) for f in fields(base)}
    for key, f in mechanism_fields(causal).items():
        own[key] = (Optional[f.type], f, None) if key in OPEN_OPTIONS else (f.type, f, f.default)
    unknown = sorted(set(defaults) - set(own))
    if unknown:
        raise ValueError(f"{name} has no field {unknown[0]!r}")
    changed = [
        (key, kind, _copy(f, defaults.get(key, default)))
        for key, (kind, f, default) in own.items()
        if key in defaults or key not in base.__dataclass_fields__
    ]
    return make_dataclass(name, changed, bases=(base,))


def mechanism_fields(causal: bool | None = None) -> dict[str, Field]:
    """The options of all mechanisms, or of those with that form, by the name of the model's field."""
    return {
        f"{mechanism}_{f.name}": f
        for mechanism in attention_names(causal)
        for f in fields(attention_class(mechanism).Options)
    }


def _copy(source: Field, default: object) -> Any:
    return field(default=default, metadata=dict(source.metadata))


# Last words of the names of sizes, and of probabilities.
SIZES = ("layers", "dim", "heads", "positions", "tokens_per_sample")
NONE_AT_ZERO = ("classifier_dim",)
PROBABILITIES = ("dropout", "layerdrop")


def check_numbers(cfg: Any) -> None:
    """Refuse a configuration that holds NaN, infinity, a size below 1 or a probability outside [0, 1].

    Raises:
        UserError: naming the option.
    """
    values = dict(cfg.items_ex(resolve=False)) if isinstance(cfg, DictConfig) else vars(cfg)
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        option = f"--{name.replace('_', '-')}"
        if not math.isfinite(value):
            raise UserError(f"{option} is {value}; it must be a finite number")
        least = 0 if name in NONE_AT_ZERO else 1
        if name.endswith(SIZES) and value < least:
            raise UserError(f"{option} is {value}; it must be {least} or more")
        if name.endswith(PROBABILITIES) and not 0 <= value <= 1:
            raise UserError(f"{option} is {value}; it must be a number from 0 to 1")


def attention_options(cfg: Any) -> dict[str, dict[str, object]]:
    """Each mechanism's options, from a model's configuration or else by default."""
    return {
        mechanism: {
            f.name: f.default if (given := getattr(cfg, f"{mechanism}_{f.name}", None)) is None else given
            for f in fields(attention_class(mechanism).Options)
        }
        for mechanism in attention_names()
    }
