"""A study as its YAML declares it; docs/studies.md describes the keys."""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import product
from pathlib import Path
from string import Formatter
from typing import Any

from jinja2 import Environment, TemplateSyntaxError
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from lab.errors import UserError, check_known, nearest
from lab.files import ROOT
from lab.measure import EVALUATORS
from lab.methods import label_of
from lab.papers import read_table
from lab.study.claims import EXTREMES, PAIRS, RANK
from lab.study.schema import (
    BY,
    COUNT,
    FORMAT,
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
    Column,
    Expression,
    PaperColumn,
    Study,
    TableSpec,
    Tune,
    parse_expression,
)
from lab.study.table import key_of
from lab.verdicts import (
    BOUNDS,
    NOT_COMPARABLE,
    UNDECIDED,
    Bound,
)

REASONS = {"not_comparable": NOT_COMPARABLE, "undecided": UNDECIDED}
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


def check_keys(found: Any, known: Collection[str], where: str, required: Sequence[str] = ()) -> None:
    """UserError for the first key that is not known or is missing, and for what is no mapping."""
    if not isinstance(found, Mapping):
        raise UserError(f"{where}: expected keys and values, found {found!r}")
    for key in found:
        check_known(key, known, f"{where}: there is no key {key}")
    for key in required:
        if key not in found:
            raise UserError(f"{where}: {key} is missing")


def check_choice(value: Any, known: Collection[str], where: str) -> Any:
    """`value` if it is one of the `known`; UserError for anything else."""
    check_known(value, known, f"{where} is {value!r}")
    return value


def as_list(given: Any) -> list[Any]:
    """What a key has that takes one thing or a list."""
    return given if isinstance(given, list) else [given]


def read_only(given: Any, axes: Mapping[str, Any], where: str) -> dict[str, tuple[str, ...]]:
    """The key `only`: the choices of an axis that count, one or a list."""
    check_keys(given, axes, f"{where}: only")
    found = {}
    for axis, words in given.items():
        found[axis] = tuple(map(str, as_list(words)))
        for word in found[axis] if axes[axis].closed else ():
            check_known(word, axes[axis].choices, f"{where}: only: {axis} has no {word}")
    return found


def positive_number(value: Any, where: str) -> int:
    """`value` as a whole number of 1 or more."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UserError(f"{where} is {value!r}; it must be a whole number of 1 or more")
    return value


def number(value: Any, where: str) -> float:
    """`value`, a number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UserError(f"{where} is {value!r}; it must be a number")
    return float(value)


def check_format(text: Any, where: str) -> str:
    """`text` if it is a number format or `count`; UserError for anything else."""
    if text != COUNT and not FORMAT.fullmatch(str(text)):
        raise UserError(f"{where}: {text!r} is no format; write one such as .2f, or {COUNT}")
    return str(text)


def read_baseline(given: Any, where: str) -> Baseline:
    """A baseline of a YAML; UserError for what is wrong in it."""
    where = f"{where}: baseline"
    check_keys(given, ("name", "found", "margin"), where)
    if not isinstance(given.get("found"), Mapping) or not given.get("name"):
        raise UserError(f"{where}: write name and found, such as {{name: guessing, found: {{accuracy: 50}}}}")
    margins = (given.get("margin") or {}).items()
    margin = {str(path): number(value, f"{where}: margin of {path}") for path, value in margins}
    for path in margin:
        check_known(path, given["found"], f"{where}: margin has no figure {path} in found")
    return Baseline(str(given["name"]), dict(given["found"]), margin)


def read_claim(given: Any, axes: Mapping[str, Any], row_axes: Mapping[str, Any], where: str) -> Claim:
    """A claim of a YAML on tables whose rows are choices of `row_axes`; UserError for what is wrong in it."""
    check_keys(given, ("says", "where", "test", "only", *REASONS), where, required=("says", "where", "test"))
    test = given["test"]
    check_keys(test, (*PAIRS, *EXTREMES, RANK, *BOUNDS, "among", "examples"), f"{where}: test")
    kinds = [kind for kind in (*PAIRS, *EXTREMES, RANK) if kind in test]
    if len(kinds) != 1:
        raise UserError(f"{where}: a test has one of {', '.join((*PAIRS, *EXTREMES, RANK))}")
    kind, words = kinds[0], as_list(test[kinds[0]])
    rows = tuple(map(str, [*words[1:], *test.get("among", [])]))
    if len(words) != {RANK: 1, "lowest": 2, "highest": 2}.get(kind, 3):
        raise UserError(f"{where}: {kind} takes a figure and {'two rows' if kind in PAIRS else 'a row'}")
    check_claimed(rows, row_axes, where)
    examples = test.get("examples")
    if examples and kind != "difference":
        raise UserError(f"{where}: examples belongs to a difference of accuracies, not to {kind}")
    reasons = [(REASONS[key], str(given[key])) for key in REASONS if given.get(key)]
    if len(reasons) > 1:
        raise UserError(f"{where}: write one of {', '.join(REASONS)}")
    return Claim(
        str(given["says"]),
        str(given["where"]),
        kind,
        parse_expression(words[0], where),
        rows,
        read_bound(test, kind, where),
        parse_expression(examples, where) if examples else None,
        read_only(given.get("only") or {}, axes, where),
        *reasons,
    )


def read_bound(test: Mapping[str, Any], kind: str, where: str) -> Bound | None:
    """The bound of a test; None for the kinds that have none. Raises UserError for what is wrong in it."""
    known = {RANK: ("at_least",)}.get(kind, () if kind in EXTREMES else BOUNDS)
    found = [key for key in BOUNDS if key in test]
    if len(found) != min(1, len(known)) or not {*found} <= {*known}:
        raise UserError(f"{where}: {kind} needs {' or '.join(known) or 'no bound'}")
    return Bound(found[0], number(test[found[0]], f"{where}: {found[0]}")) if found else None


def check_claimed(rows: Sequence[str], axes: Mapping[str, Any], where: str) -> None:
    """UserError for a row that names no choice, where the axes have all of their choices in the YAML."""
    if not all(axis.closed for axis in axes.values()):
        return
    known = [name for axis in axes.values() for name in axis.choices]
    for word in (word for row in rows for word in row.split("/")):
        check_known(word, known, f"{where}: there is no row {word}")


def read_table_spec(given: Any, axes: Mapping[str, Any], where: str) -> TableSpec:
    """A table of a YAML; UserError for what is wrong in it."""
    where = f"{where}: table"
    check_keys(given, ("title", "rows", "columns", "only", "paper", "across", "average"), where)
    rows = tuple(as_list(given.get("rows") or list(axes)[-1]))
    only = read_only(given.get("only") or {}, axes, where)
    for axis in rows:
        check_known(axis, axes, f"{where}: there is no axis {axis}")
    columns = []
    for column in given.get("columns") or []:
        if not isinstance(column, list) or len(column) != 3:
            raise UserError(f"{where}: a column is [title, expression, format], found {column!r}")
        title, text, form = column
        columns.append(Column(str(title), parse_expression(text, where), check_format(form, where)))
    if not columns:
        raise UserError(f"{where}: columns is missing; write [[title, expression, format], ...]")
    across, papers = str(given.get("across", "")), as_list(given.get("paper") or [])
    if across and (len(rows) < 2 or across != rows[-1]):
        raise UserError(f"{where}: across is {across!r}; it must be the last of several axes in rows")
    if len(papers) > 1 and not across:
        raise UserError(f"{where}: several papers need across; put the others into tables of their own")
    return TableSpec(
        str(given.get("title", "")),
        {axis: axes[axis] for axis in rows},
        tuple(columns),
        only,
        tuple(read_paper(paper, axes, rows, where) for paper in papers),
        across,
        str(given.get("average", "")),
    )


def read_paper(given: Any, axes: Mapping[str, Any], rows: Sequence[str], where: str) -> PaperColumn:
    """The key `paper`; without `rows` a choice is found by its name or its label."""
    where = f"{where}: paper"
    check_keys(given, ("table", "key", "rows", "value", "title", "average"), where)
    try:
        table = read_table(str(given.get("table")))
    except OSError:
        raise UserError(f"{where}: results/paper has no table {given.get('table')}") from None
    key = tuple(map(str, as_list(given.get("key") or next(iter(table[0])))))
    value, by = given.get("value"), ""
    if isinstance(value, Mapping):
        by, value = next(iter(value.items()))
    else:
        value = {"": value}
    average = str(given.get("average", ""))
    for column in (*key, *value.values(), *([average] if average else [])):
        check_known(column, table[0], f"{where}: {given['table']} has no column {column}")
    if by and by not in rows:
        raise UserError(f"{where}: value depends on {by}, which is no row of the table")
    choices = axes[rows[0]].choices
    theirs = {key_of(row, key): row for row in table}
    known = {name.casefold() for name in theirs}
    named = given.get("rows") or {
        name: word
        for name, choice in choices.items()
        for word in (name, choice.label)
        if word.casefold() in known
    }
    matches = {str(name): str(row) for name, row in named.items()}
    for name in matches if axes[rows[0]].closed else ():
        check_known(name, choices, f"{where}: {rows[0]} has no choice {name}")
    for row in matches.values():
        if row.casefold() not in known:
            raise UserError(f"{where}: {given['table']} has no row {row}{nearest(row, theirs)}")
    found = {
        ours: row
        for name, row in theirs.items()
        for ours, wanted in matches.items()
        if wanted.casefold() == name.casefold()
    }
    return PaperColumn(key, found, dict(value), by, str(given.get("title", "paper")), average)
