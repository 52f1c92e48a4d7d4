"""The axes of a study's YAML, and the settings of their choices."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Formatter
from typing import Any

from lab.errors import UserError, check_known
from lab.methods import label_of
from lab.study.keys import ChoiceKeys, Only, validated
from lab.study.schema import NAME, YAML, Axis, Choice

RESERVED = ("label", "config", "seeds", "on_request")
OPTIONS = ("study", "list", "status", "dry_run", "seeds", "jobs", "out", "data", "source", "start", "help")
OPTIONS += ("seed", "tuning")
"""Names that no axis may have: the options of scripts/study.sh, and keys of a record."""
FOLDER = re.compile(r"[^./\0-][^/\0]*")
"""A value of an axis, also the name of a folder."""


def read_axis(path: Path, name: str, value: Any, config: str) -> Axis:
    """Read an axis: a mapping of names to settings, or a list of values."""
    if not str(name).isidentifier() or name in OPTIONS:
        raise UserError(
            f"{path}: {name!r} cannot name an axis; use letters, digits and _, and no option's name"
        )
    placeholder = f"{{{name}}}" in config
    if isinstance(value, Mapping) and value:
        choices = [read_choice(path, name, str(key), given or {}) for key, given in value.items()]
        if all(choice.on_request for choice in choices):
            raise UserError(f"{path}: all choices of {name} are on_request; leave at least one without it")
        return Axis(name, distinct(path, name, choices), placeholder, closed=True)
    if not isinstance(value, list) or not value:
        raise UserError(f"{path}: the axis {name} needs a list of values, or a mapping of names to settings")
    for word in map(str, value):
        if not FOLDER.fullmatch(word):
            raise UserError(
                f"{path}: {word!r} cannot be a value of {name}, after which folders are called; leave out / "
                "and a leading . or -"
            )
    axis = Axis(name, {}, placeholder, closed=False)
    choices = [axis.value(str(word)) for word in value]
    return Axis(name, distinct(path, name, choices), placeholder, closed=False)


def distinct(path: Path, axis: str, choices: Sequence[Choice]) -> dict[str, Choice]:
    """The choices of an axis by name; UserError where two have one name (`1` and `"1"`) or one label."""
    for what in ("name", "label"):
        counts = Counter(getattr(choice, what) for choice in choices)
        [(common, count)] = counts.most_common(1)
        if count > 1:
            raise UserError(f"{path}: two choices of {axis} have the {what} {common!r}; rename one of them")
    return {choice.name: choice for choice in choices}


def read_choice(path: Path, axis: str, name: str, given: Any) -> Choice:
    """One choice of an axis: settings of fairseq-train, but for the keys of RESERVED."""
    if not NAME.fullmatch(name):
        raise UserError(
            f"{path}: {name!r} cannot name a choice of {axis}; use letters and digits, and within it . - _"
        )
    if not isinstance(given, Mapping):
        raise UserError(f"{path}: {axis}.{name} needs settings such as {{plan: elu}}, found {given!r}")
    settings = with_text_keys({key: value for key, value in given.items() if key not in RESERVED})
    check_groups(settings, f"{path}: {axis}.{name}")
    about = {key: given[key] for key in RESERVED if key in given}
    keys = validated(ChoiceKeys, about, f"{path}: {axis}.{name}")
    label = keys.label or label_of(name)
    return Choice(name, settings, label, keys.config or name, keys.seeds, keys.on_request)


def with_text_keys(value: Any) -> Any:
    """A setting, or mappings of settings, with keys that are texts: YAML reads some as numbers."""
    if not isinstance(value, Mapping):
        return value
    return {str(key): with_text_keys(one) for key, one in value.items()}


def check_conditional(path: Path, axes: Mapping[str, Axis]) -> None:
    """UserError where a choice has anything but settings, not conditional again, for one of another axis."""
    conditional = (
        (f"{name}.{choice.name}.{key}.{other}", given)
        for name, axis in axes.items()
        for choice in axis.choices.values()
        for key, value in choice.settings.items()
        if key in axes and isinstance(value, Mapping)
        for other, given in value.items()
    )
    for where, given in conditional:
        if not isinstance(given, Mapping):
            raise UserError(f"{path}: {where} needs settings such as {{plan: elu}}, found {given!r}")
        for key, value in given.items():
            if key != YAML and isinstance(value, Mapping):
                raise UserError(
                    f"{path}: {where}.{key} is {value!r:.80}; a setting depends on one other axis, so "
                    "write a choice for each combination"
                )


def check_groups(settings: Mapping[str, Any], where: str) -> None:
    """UserError for a key without a value, a seed, and `yaml` without groups, also below another axis."""
    for key, value in settings.items():
        if key == "seed":
            raise UserError(
                f"{where}: seed is {value!r}, but a study counts its seeds; write how many below seeds, and "
                "the first one as yaml: {common: {seed: ...}}"
            )
        if value is None:
            raise UserError(f"{where}: {key!r} has no value; quote a text that has a comma or a colon")
        if key != YAML and isinstance(value, Mapping):
            check_groups(value, where)
        elif key == YAML and not (
            isinstance(value, Mapping) and all(isinstance(one, Mapping) for one in value.values())
        ):
            raise UserError(
                f"{where}.{YAML} needs groups of settings such as {{model: {{encoder_layers: 2}}}}, "
                f"found {value!r}"
            )
        elif key == YAML:
            for one in value.values():
                if not isinstance(name := one.get("_name", ""), str):
                    raise UserError(f"{where}.{YAML}: _name is {name!r}; it is a text")


def check_placeholders(path: Path, key: str, text: Any, axes: Mapping[str, Axis]) -> None:
    """UserError for a `{name}` in the path of the configurations or the data that no axis has."""
    try:
        names = [name for _, name, _, _ in Formatter().parse(str(text)) if name is not None]
    except ValueError as error:
        raise UserError(f"{path}: {key} is {text!r}: {error}") from None
    for name in names:
        check_known(name, axes, f"{path}: {key} names {{{name}}}, which is not an axis")


def check_only(only: Only, axes: Mapping[str, Any], where: str) -> None:
    """UserError for a choice below `only` that its axis does not have."""
    for axis, words in only.items():
        check_known(axis, axes, f"{where}: only: there is no axis {axis}")
        for word in words if axes[axis].closed else ():
            check_known(word, axes[axis].choices, f"{where}: only: {axis} has no {word}")
