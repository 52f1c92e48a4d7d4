"""A study as its YAML declares it; docs/studies.md describes the keys."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import product
from pathlib import Path
from string import Formatter
from typing import Any

from jinja2 import Environment, TemplateSyntaxError
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from lab.errors import UserError
from lab.files import ROOT
from lab.measure import EVALUATORS
from lab.methods import label_of
from lab.study.baseline import read_baseline
from lab.study.claims import read_claim
from lab.study.notation import (
    Expression,
    as_list,
    check_choice,
    check_keys,
    check_known,
    nearest,
    number,
    parse_expression,
    positive_number,
)
from lab.study.schema import (
    BY,
    GIVEN,
    NAME,
    STUDIES,
    TUNED_BY,
    YAML,
    Axis,
    Baseline,
    Best,
    Choice,
    Claim,
    Study,
    TableSpec,
    Tune,
)
from lab.study.table import read_table_spec

KEYS = (
    "about",
    "config",
    "data",
    "start",
    "settings",
    "axes",
    "tune",
    "best",
    "seeds",
    "prepare",
    "checkpoint",
    "keep",
    "evaluate",
    "tables",
    "table",
    "paper",
    "baseline",
    "claims",
    "plot",
    "notes",
    "extras",
    "hooks",
)
REQUIRED = ("about", "axes", "evaluate", "table")
CHECKPOINTS = ("last", "best")
PLOTTED_BY = ("updates", "seconds")
KEPT = ("measured", "all")
RESERVED = ("label", "config", "seeds", "on_request")
OPTIONS = ("study", "list", "status", "dry_run", "seeds", "jobs", "out", "data", "source", "start", "help")
OPTIONS += ("seed", "tuning")
"""Of scripts/study.sh, and what else identifies a record."""
FOLDER = re.compile(r"[^./\0-][^/\0]*")
"""A value of an axis, which is the name of a folder, too."""
INTERPOLATION = "${"
TEXTS = ("about", "notes")
"""Keys of prose, in which nothing is interpolated."""
OF_TRAINING = (
    "updates",
    "seconds",
    "tokens_per_second",
    "tokens_per_update",
    "peak_memory_bytes",
    "curves.*",
)
OF_RECORDS = ("cell.*", "settings.*", "data.*", "tuned.*", "environment.*")
"""Figures of a record besides those of its evaluator."""


def study_names() -> list[str]:
    """The studies of configs/studies."""
    return sorted(path.stem for path in STUDIES.glob("*.yaml"))


def our_studies() -> list[Study]:
    """Those, as they are declared."""
    return [read_study(name) for name in study_names()]


def read_study(word: str | Path) -> Study:
    """The study of configs/studies with this name, or the one that a user's own YAML declares.

    Raises UserError in one line for what is wrong in it.
    """
    path = Path(word).absolute()
    if path.suffix != ".yaml":
        check_known(word, study_names(), f"there is no study {word}")
        path = STUDIES / f"{word}.yaml"
    elif not path.is_file():
        raise UserError(f"no study {Path(word)}; name a YAML, or one of {', '.join(study_names())}")
    try:
        content = OmegaConf.to_container(OmegaConf.load(path))
    except (OSError, YAMLError, OmegaConfBaseException, ValueError) as error:
        raise UserError(f"{path} cannot be read: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise UserError(f"{path} is no study; docs/studies.md shows one")
    check_not_interpolated(path, content)
    try:
        return _study(path, content)
    except UserError:
        raise
    except (TypeError, ValueError, AttributeError, LookupError) as error:
        raise UserError(
            f"{path}: a value has not the form that docs/studies.md describes: {' '.join(str(error).split())}"
        ) from None


def _study(path: Path, content: dict[str, Any]) -> Study:
    if "table" in content and "tables" in content:
        raise UserError(f"{path}: table and tables exclude each other; put all of them into tables")
    tables = content.get("tables") or [{**(content.get("table") or {}), "paper": content.get("paper")}]
    check_keys(content, KEYS, str(path))
    for key in REQUIRED:
        if key not in content and not (key == "table" and "tables" in content):
            raise UserError(f"{path}: {key} is missing; docs/studies.md describes it")
    evaluate = content["evaluate"]
    check_known(evaluate, EVALUATORS, f"{path}: there is no evaluator {evaluate!r}")
    if EVALUATORS[evaluate].trains and "config" not in content:
        raise UserError(f"{path}: config is missing; docs/studies.md describes it")
    axes = {name: read_axis(path, name, value, content) for name, value in content["axes"].items()}
    for key in ("config", "data"):
        check_placeholders(path, key, content.get(key, ""), axes)
    checkpoint = check_choice(content.get("checkpoint", CHECKPOINTS[0]), CHECKPOINTS, f"{path}: checkpoint")
    keep = check_choice(content.get("keep", KEPT[0]), KEPT, f"{path}: keep")
    if start := str(content.get("start", "")):
        check_known(start, (GIVEN, *study_names()), f"{path}: start names no study {start!r}")
    settings = content.get("settings") or {}
    if not isinstance(settings, Mapping):
        raise UserError(f"{path}: settings needs settings such as {{log_interval: 1}}, found {settings!r}")
    check_groups(settings, f"{path}: settings")
    extras = read_extras(path, content, axes)
    specs = tuple(read_table_spec(spec, axes, str(path)) for spec in tables)
    rows = {name: axis for spec in specs for name, axis in spec.rows.items()}
    best = read_best(content.get("best"), axes, str(path))
    check_rows(path, specs, {*rows} - {best and best.axis})
    baselines = tuple(read_baseline(one, str(path)) for one in as_list(content.get("baseline") or []))
    claims = tuple(read_claim(claim, axes, rows, f"{path}: claims") for claim in content.get("claims") or ())
    check_figures(path, evaluate, asked_figures(specs, claims, baselines, best))
    return Study(
        name=path.stem,
        path=path,
        about=str(content["about"]),
        config=str(content.get("config", "")),
        data=str(content.get("data", "")),
        start=start,
        settings={str(key): value for key, value in settings.items()},
        keep=keep,
        best=best,
        axes=axes,
        seeds=positive_number(content.get("seeds", 1), f"{path}: seeds"),
        evaluate=evaluate,
        checkpoint=checkpoint,
        tables=specs,
        tune=read_tune(content.get("tune"), axes, str(path)),
        prepare=read_prepare(path, content.get("prepare")),
        baselines=baselines,
        claims=claims,
        plot=read_plot(path, content.get("plot")),
        notes=read_notes(path, content.get("notes", "")),
        extras=extras,
    )


def check_not_interpolated(path: Path, content: Mapping[Any, Any]) -> None:
    """UserError for a setting that fairseq would fill in, perhaps from the environment of who runs it."""
    for key, value in content.items():
        if key not in TEXTS and INTERPOLATION in str(value):
            raise UserError(
                f"{path}: {key} has an interpolation, {INTERPOLATION}...}}; write the value itself"
            )


def asked_figures(
    tables: Iterable[TableSpec], claims: Iterable[Claim], baselines: Iterable[Baseline], best: Best | None
) -> Iterator[tuple[str, Expression]]:
    """Every figure of a record that a study is about, and what asks for it."""
    for column in (column for spec in tables for column in spec.columns):
        yield f"the column {column.title!r} shows", column.figure
    for claim in claims:
        yield f"the claim {claim.says!r} is about", claim.figure
    for one in baselines:
        for word in (word for pair in one.found.items() for word in pair if isinstance(word, str)):
            yield f"the baseline {one.name!r} has", parse_expression(word, one.name)
    if best:
        yield "best chooses by", best.figure


def check_figures(path: Path, evaluate: str, asked: Iterable[tuple[str, Expression]]) -> None:
    """UserError for a figure that no record can have: of the evaluator's, of training or about the cell."""
    known = [*EVALUATORS[evaluate].figures.split(), *OF_TRAINING]
    for what, figure in asked:
        name = ".".join(figure.path)
        place = name.removeprefix("training.").removeprefix("found.")
        if not any(fnmatchcase(place, one) for one in (*known, *OF_RECORDS)):
            raise UserError(
                f"{path}: {what} {name}, which evaluate: {evaluate} does not measure{nearest(name, known)}"
            )


def check_rows(path: Path, specs: Iterable[TableSpec], apart: Iterable[str]) -> None:
    """UserError for a table whose rows join, like seeds, choices of an axis that are `apart` in another."""
    for axis, spec in product(sorted(apart), specs):
        if axis not in spec.rows and len(spec.only.get(axis, ())) != 1:
            raise UserError(
                f"{path}: the table with the rows {', '.join(spec.rows)} would join the choices of {axis}, "
                f"which another table tells apart; add {axis} to its rows, or keep one of them with only"
            )


def read_extras(path: Path, content: Mapping[str, Any], axes: Mapping[str, Axis]) -> bool:
    """The key `extras`, once called `hooks`; UserError where the study lacks what they show."""
    wanted = bool(content["hooks"]) if "hooks" in content else content.get("extras", False)
    if not isinstance(wanted, bool):
        raise UserError(f"{path}: extras is {wanted!r}; it must be true or false")
    chosen = EVALUATORS[content["evaluate"]]
    if wanted and not (chosen.extras and set(chosen.needs) <= set(axes)):
        needed = f" without the axes {', '.join(chosen.needs)}" if chosen.extras else ""
        raise UserError(f"{path}: evaluate: {content['evaluate']} has no extras{needed}; leave them out")
    return wanted


def read_notes(path: Path, given: Any) -> str:
    """The key `notes`, in jinja2's syntax."""
    try:
        Environment().parse(str(given))
    except TemplateSyntaxError as error:
        raise UserError(f"{path}: notes cannot be read: {error}") from None
    return str(given)


def read_axis(path: Path, name: str, value: Any, content: Mapping[str, Any]) -> Axis:
    """An axis: a mapping of names to settings, or a list of values."""
    if not str(name).isidentifier() or name in OPTIONS:
        raise UserError(
            f"{path}: {name!r} cannot name an axis; use letters, digits and _, and no option's name"
        )
    placeholder = f"{{{name}}}" in str(content.get("config", ""))
    if isinstance(value, Mapping) and value:
        choices = [read_choice(path, name, str(key), given or {}) for key, given in value.items()]
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
    settings = {str(key): value for key, value in given.items() if key not in RESERVED}
    check_groups(settings, f"{path}: {axis}.{name}")
    label, config = str(given.get("label") or label_of(name)), str(given.get("config", name))
    seeds = given.get("seeds")
    if seeds is not None:
        positive_number(seeds, f"{path}: {axis}.{name}.seeds")
    return Choice(name, settings, label, config, seeds, bool(given.get("on_request", False)))


def check_groups(settings: Mapping[str, Any], where: str) -> None:
    """UserError for a key without a value, and for `yaml`, also below another axis, without groups."""
    for key, value in settings.items():
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


def check_placeholders(path: Path, key: str, text: Any, axes: Mapping[str, Axis]) -> None:
    """UserError for a `{name}` in the path of the configurations or the data that no axis has."""
    try:
        names = [name for _, name, _, _ in Formatter().parse(str(text)) if name is not None]
    except ValueError as error:
        raise UserError(f"{path}: {key} is {text!r}: {error}") from None
    for name in names:
        check_known(name, axes, f"{path}: {key} names {{{name}}}, which is no axis")


def read_prepare(path: Path, given: Any) -> dict[str, tuple[str, ...]]:
    """The key `prepare`: script and arguments, or those of each folder of data."""
    by_folder = given if isinstance(given, Mapping) else {"": given} if given else {}
    scripts = sorted(script.name for script in (ROOT / "data-prep").glob("*.sh"))
    for words in by_folder.values():
        if not isinstance(words, list) or not words:
            raise UserError(
                f"{path}: prepare needs a script of data-prep/ with its arguments, found {words!r}"
            )
        check_known(words[0], scripts, f"{path}: prepare: data-prep/ has no {words[0]}")
        if outside := [
            word for word in map(Path, map(str, words)) if word.is_absolute() or ".." in word.parts
        ]:
            raise UserError(f"{path}: prepare names {outside[0]}; name folders inside the project")
    return {str(folder): tuple(map(str, words)) for folder, words in by_folder.items()}


def read_best(given: Any, axes: Mapping[str, Any], where: str) -> Best | None:
    """The key `best`, None without it; UserError for what is wrong in it."""
    if not given:
        return None
    where = f"{where}: best"
    check_keys(given, ("axis", *BY), where)
    axis, by = given.get("axis"), [key for key in BY if key in given]
    check_known(axis, axes, f"{where}: there is no axis {axis}")
    if len(by) != 1:
        raise UserError(
            f"{where}: write one of {', '.join(BY)} and a figure, such as {{axis: lr, highest: score}}"
        )
    return Best(str(axis), parse_expression(given[by[0]], where), by[0])


def read_tune(given: Any, axes: Mapping[str, Any], where: str) -> Tune | None:
    """The key `tune`, None without it; UserError for what is wrong in it."""
    if not given:
        return None
    where = f"{where}: tune"
    check_keys(given, ("axis", "values", "updates", "by"), where, required=("axis", "values", "updates"))
    if given["axis"] in axes:
        raise UserError(f"{where}: {given['axis']} is an axis of the study; tune another setting")
    if not str(given["axis"]).isidentifier():
        raise UserError(f"{where}: {given['axis']!r} is no setting; use letters, digits and _")
    by = check_choice(given.get("by", "valid_loss"), TUNED_BY, f"{where}: by")
    values = tuple(map(str, as_list(given["values"])))
    if bad := [value for value in values if "/" in value]:
        raise UserError(f"{where}: {bad[0]!r} cannot be a value, after which folders are called; leave out /")
    return Tune(str(given["axis"]), values, positive_number(given["updates"], f"{where}.updates"), by)


def plotted_by(plot: Mapping[str, Any]) -> list[Any]:
    """What the panels of the curves are over."""
    return as_list(plot.get("by") or PLOTTED_BY[0])


def read_plot(path: Path, given: Any) -> dict[str, Any]:
    """The key `plot`: which curves of the first seed are drawn, by what, the unit on the axis, its factor."""
    if not given:
        return {}
    where = f"{path}: plot"
    check_keys(given, ("curves", "by", "y", "factor"), where)
    check_choice(given.get("curves"), ("train", "valid"), f"{where}: curves")
    for word in plotted_by(given):
        check_known(word, PLOTTED_BY, f"{where}: by names {word!r}")
    number(given.get("factor", 1.0), f"{where}: factor")
    return {"y": f"{given['curves']} loss, bits", "factor": 1.0, **given}
