"""A study's YAML, read into the classes of schema.py; docs/studies.md describes the keys.

Each part of the YAML has a class of `Keys`, which pydantic fills: it decides which keys exist, and their
types. The functions `read_...` check what depends on other parts, such as a row that is not an axis.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import product
from pathlib import Path
from string import Formatter
from typing import Annotated, Any, Literal, TypeVar

from jinja2 import Environment, TemplateSyntaxError, nodes
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, Strict, ValidationError, model_validator
from yaml import YAMLError

from lab.errors import UserError, check_known, nearest
from lab.files import ROOT
from lab.measure import MEASURES
from lab.methods import NAMED, label_of
from lab.papers import read_table
from lab.study.schema import (
    BY,
    COUNT,
    FORMAT,
    GIVEN,
    NAME,
    STUDIES,
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
from lab.study.table import EXTREMES, PAIRS, RANK, key_of
from lab.verdicts import (
    BOUNDS,
    Bound,
)

SAME = ("about", "asks", "config", "data", "start", "keep", "seeds", "evaluate", "checkpoint")
"""Keys that a study takes over unchanged."""
RESERVED = ("label", "config", "seeds", "on_request")
OPTIONS = ("study", "list", "status", "dry_run", "seeds", "jobs", "out", "data", "source", "start", "help")
OPTIONS += ("seed", "tuning")
"""Names that no axis may have: the options of scripts/study.sh, and keys of a record."""
FOLDER = re.compile(r"[^./\0-][^/\0]*")
"""A value of an axis, also the name of a folder."""
INTERPOLATION = "${"
TEXTS = ("about", "asks", "answer", "notes")
"""Keys of prose, in which nothing is interpolated."""
OF_TRAINING = (
    "updates",
    "seconds",
    "tokens_per_second",
    "tokens_per_update",
    "peak_memory_bytes",
    "curves.*",
)
ANSWERING = ("median", "highest", "change", "points", "ranked")
"""Words of an answer whose first argument is a figure, see `lab.study.page.Answer`."""
OF_RECORDS = ("cell.*", "settings.*", "data.*", "tuned.*", "environment.*")
"""Figures of a record besides those of its measure."""


Text = Annotated[str, BeforeValidator(lambda given: str(given) if isinstance(given, int | float) else given)]
"""A text, or a number that is read as text."""
Words = Annotated[tuple[Text, ...], BeforeValidator(lambda given: as_list(given))]
"""One text, or a list of them."""
Count = Annotated[int, Strict(), Field(gt=0)]
Number = Annotated[float, Strict()]
Only = dict[Text, Words]
"""The choices of an axis that count."""


class Keys(BaseModel):
    """The keys of a part of a study's YAML; a key without a value counts as missing."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def without_empty(cls, given: Any) -> Any:
        """Leave out keys that have no value."""
        if not isinstance(given, dict):
            return given
        return {str(key): value for key, value in given.items() if value is not None}


class StudyKeys(Keys):
    """The whole YAML; parts with their own keys are read one by one."""

    about: Text
    evaluate: Text
    axes: Annotated[dict[Text, Any], Field(min_length=1)]
    config: Text = ""
    data: Text = ""
    start: Text = ""
    settings: dict[Text, Any] = {}
    seeds: Count = 1
    checkpoint: Literal["last", "best"] = "last"
    keep: Literal["measured", "all"] = "measured"
    tables: list[Any] = []
    table: Any = None
    paper: Any = None
    baseline: Any = None
    claims: list[Any] = []
    plot: Any = None
    tune: Any = None
    best: Any = None
    prepare: Any = None
    asks: Text = ""
    answer: Text = ""
    notes: Text = ""
    extras: Annotated[bool, Strict()] = False


class ChoiceKeys(Keys):
    """What a choice has besides the settings of fairseq-train, see `Choice`."""

    label: Text = ""
    config: Text = ""
    seeds: Count | None = None
    on_request: bool = False


class TuneKeys(Keys):
    """Below `tune`."""

    axis: Text
    values: Words
    updates: Count
    by: Literal["valid_loss", "valid_accuracy"] = "valid_loss"
    bracket: Annotated[bool, Strict()] = False
    only: Only = {}


class BestKeys(Keys):
    """Below `best`."""

    axis: Text
    highest: Text = ""
    lowest: Text = ""


class PlotKeys(Keys):
    """Below `plot`."""

    asks: Text = ""
    curves: Literal["train", "valid"]
    methods: dict[str, str] = Field(default_factory=dict)
    by: Annotated[
        tuple[Literal["updates", "seconds"], ...], BeforeValidator(lambda given: as_list(given))
    ] = ()
    y: Text = ""
    factor: Number = 1.0
    log: bool = False
    baseline: Text = ""


class BaselineKeys(Keys):
    """A baseline."""

    name: Text
    found: dict[Text, Annotated[float, Strict()] | Annotated[str, Strict()]]
    margin: dict[Text, Number] = {}
    examples: Text = ""


class TableKeys(Keys):
    """A table."""

    title: Text = ""
    rows: Words = ()
    columns: Annotated[list[tuple[Text, Text, Text]], Field(min_length=1)]
    only: Only = {}
    paper: Any = None
    across: Text = ""
    average: Text = ""


class PaperKeys(Keys):
    """The column of a paper beside a table."""

    table: Text
    value: Any = None
    key: Words = ()
    rows: dict[Text, Text] = {}
    title: Text = "paper"
    average: Text = ""


class TestKeys(Keys):
    """The test of a claim: a kind with the figure and its rows, and a bound."""

    ratio: tuple[Text, Text, Text] | None = None
    difference: tuple[Text, Text, Text] | None = None
    lowest: tuple[Text, Text] | None = None
    highest: tuple[Text, Text] | None = None
    rank: Annotated[tuple[Text], BeforeValidator(lambda given: as_list(given))] | None = None
    at_most: Number | None = None
    at_least: Number | None = None
    within: Number | None = None
    among: Words = ()
    examples: Text = ""
    bootstrap: Annotated[bool, Strict()] = False


class ClaimedKeys(Keys):
    """The figures that a claim is about, in a paper's table."""

    table: Text
    value: Text
    rows: Words


class ClaimKeys(Keys):
    """A claim of a paper."""

    says: Text
    where: Text
    test: Any
    paper: Any = None
    only: Only = {}
    not_comparable: Text = ""


SomeKeys = TypeVar("SomeKeys", bound=Keys)


EXPECTED = {
    "int_type": "it must be a whole number of 1 or more",
    "greater_than": "it must be a whole number of 1 or more",
    "float_type": "it must be a number",
    "bool_type": "it must be true or false",
    "list_type": "write a list",
    "string_type": "write a text",
    "tuple_type": "write a list",
    "dict_type": "write keys and values",
    "model_type": "write keys and values",
}
"""The expected value, by pydantic's type of a mistake; other types keep pydantic's message."""


def validated(kind: type[SomeKeys], given: Any, where: str) -> SomeKeys:
    """The keys of a part of the YAML; UserError in a sentence, with the key's path, for a mistake."""
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        mistakes = error.errors()
    first = next((one for one in mistakes if one["type"] == "extra_forbidden"), mistakes[0])
    place, found = ".".join(map(str, first["loc"])), first["input"]
    if first["type"] == "extra_forbidden":
        raise UserError(f"{where}: there is no key {place}{nearest(place, kind.model_fields)}")
    where = f"{where}: {place}" if place else where
    if first["type"] == "missing":
        raise UserError(f"{where} is missing; docs/studies.md describes it")
    if first["type"] == "literal_error":
        known = first["ctx"]["expected"].replace("'", "").replace(" or ", ", ").split(", ")
        raise UserError(f"{where} is {found!r}{nearest(found, known)}")
    expected = EXPECTED.get(first["type"], first["msg"][0].lower() + first["msg"][1:])
    raise UserError(f"{where} is {found!r:.80}; {expected}")


def study_names() -> list[str]:
    """The studies of configs/studies."""
    return sorted(path.stem for path in STUDIES.glob("*.yaml"))


def our_studies() -> list[Study]:
    """The studies of configs/studies, as their YAMLs declare them."""
    return [read_study(name) for name in study_names()]


def read_study(word: str | Path) -> Study:
    """The study of configs/studies with this name, or the study of a user's own YAML.

    Raises UserError, in one line, for a mistake in it.
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
        raise UserError(f"{path} is not a study; docs/studies.md shows one")
    check_not_interpolated(path, content)
    return _study(path, validated(StudyKeys, content, str(path)))


def _study(path: Path, keys: StudyKeys) -> Study:
    check_known(keys.evaluate, MEASURES, f"{path}: there is no measure {keys.evaluate!r}")
    if not keys.config:
        raise UserError(f"{path}: config is missing; docs/studies.md describes it")
    axes = {name: read_axis(path, name, value, keys.config) for name, value in keys.axes.items()}
    check_conditional(path, axes)
    for key in ("config", "data"):
        check_placeholders(path, key, getattr(keys, key), axes)
    if keys.start:
        check_known(keys.start, (GIVEN, *study_names()), f"{path}: start names no study {keys.start!r}")
    elif MEASURES[keys.evaluate].needs_start:
        raise UserError(
            f"{path}: evaluate: {keys.evaluate} measures fine-tuned models; name the study that trains them "
            f"as start, or write start: {GIVEN}"
        )
    settings = with_text_keys(keys.settings)
    check_groups(settings, f"{path}: settings")
    extras = read_extras(path, keys, axes)
    specs = tuple(read_table_spec(spec, axes, str(path)) for spec in tables_of(path, keys))
    rows = {name: axis for spec in specs for name, axis in spec.rows.items()}
    best = read_best(keys.best, axes, str(path))
    check_rows(path, specs, {*rows} - {best and best.axis})
    baselines = tuple(read_baseline(one, str(path)) for one in as_list(keys.baseline or []))
    tables = [spec.rows for spec in specs]
    claims = tuple(read_claim(claim, axes, tables, f"{path}: claims") for claim in keys.claims)
    if keys.evaluate != "glue" and any(claim.bootstrap for claim in claims):
        raise UserError(f"{path}: claims: bootstrap needs the predictions that evaluate: glue keeps")
    study = Study(
        name=path.stem,
        path=path,
        **{key: getattr(keys, key) for key in SAME},
        settings=settings,
        best=best,
        axes=axes,
        tables=specs,
        tune=read_tune(keys.tune, axes, str(path)),
        prepare=read_prepare(path, keys.prepare),
        baselines=baselines,
        claims=claims,
        plot=read_plot(path, keys.plot),
        answer=read_template(path, "answer", keys.answer),
        notes=read_template(path, "notes", keys.notes),
        extras=extras,
    )
    check_figures(study)
    check_percent(study)
    return study


def tables_of(path: Path, keys: StudyKeys) -> list[Any]:
    """The entries below `tables`, or below `table` and `paper`."""
    if keys.tables and keys.table:
        raise UserError(f"{path}: table and tables exclude each other; put all of them into tables")
    if not (keys.tables or keys.table):
        raise UserError(f"{path}: table is missing; docs/studies.md describes it")
    if keys.table and not isinstance(keys.table, dict):
        return [keys.table]
    return keys.tables or [{"paper": keys.paper, **keys.table}]


def check_not_interpolated(path: Path, content: Mapping[Any, Any]) -> None:
    """UserError for a setting that fairseq would fill in, perhaps from the user's environment."""
    for key, value in content.items():
        if key not in TEXTS and INTERPOLATION in str(value):
            raise UserError(
                f"{path}: {key} has an interpolation, {INTERPOLATION}...}}; write the value itself"
            )


def check_figures(study: Study) -> None:
    """UserError for a figure that neither the measure, nor the training, nor the cell has."""
    known = [*MEASURES[study.evaluate].figures.split(), *OF_TRAINING]
    for what, figure in (*study.figures(), *answered(study)):
        name = ".".join(figure.path)
        place = name.removeprefix("training.").removeprefix("found.")
        if not any(fnmatchcase(place, one) for one in (*known, *OF_RECORDS)):
            raise UserError(
                f"{study.path}: {what} {name}, which evaluate: {study.evaluate} does not measure"
                f"{nearest(name, known)}"
            )


def check_percent(study: Study) -> None:
    """UserError for a figure with `examples` that is not in percent, as the noise of the test set is."""
    shares, needs = MEASURES[study.evaluate].shares.split(), "examples belongs to an accuracy in percent"

    def share(name: str) -> bool:
        return any(fnmatchcase(name, one) for one in shares)

    for claim in (one for one in study.claims if one.examples):
        name = ".".join(claim.figure.path).removeprefix("found.")
        if claim.figure.factor != (100 if share(name) else None):
            asked = f"{'100*' if share(name) else ''}{name}"
            raise UserError(f"{study.path}: the claim {claim.says!r}: {needs}; write {asked}")
    for baseline in (one for one in study.baselines if one.examples):
        for name in filter(share, (path.removeprefix("found.") for path in baseline.margin)):
            raise UserError(
                f"{study.path}: the baseline {baseline.name!r}: {needs}, and {name} is a share; "
                "leave examples out"
            )


def answered(study: Study) -> Iterator[tuple[str, Expression]]:
    """Every figure that the answer writes out as the first argument of a word, like `Study.figures`."""
    for call in Environment().parse(study.answer).find_all(nodes.Call):
        first = call.args[0] if call.args else None
        if getattr(call.node, "name", None) in ANSWERING and isinstance(first, nodes.Const):
            yield "the answer names", parse_expression(first.value, f"{study.path}: answer")


def check_rows(path: Path, specs: Iterable[TableSpec], apart: Iterable[str]) -> None:
    """UserError for a table whose rows join choices of an axis that another table keeps `apart`."""
    for axis, spec in product(sorted(apart), specs):
        if axis not in spec.rows and len(spec.only.get(axis, ())) != 1:
            raise UserError(
                f"{path}: the table with the rows {', '.join(spec.rows)} would join the choices of {axis}, "
                f"which another table tells apart; add {axis} to its rows, or keep one of them with only"
            )


def read_extras(path: Path, keys: StudyKeys, axes: Mapping[str, Axis]) -> bool:
    """The key `extras`; UserError where the study lacks their axes."""
    chosen, wanted = MEASURES[keys.evaluate], keys.extras
    if wanted and not (chosen.extras and set(chosen.needs) <= set(axes)):
        needed = f" without the axes {', '.join(chosen.needs)}" if chosen.extras else ""
        raise UserError(f"{path}: evaluate: {keys.evaluate} has no extras{needed}; leave them out")
    return wanted


def read_template(path: Path, key: str, given: str) -> str:
    """A text in jinja2's syntax."""
    try:
        Environment().parse(given)
    except TemplateSyntaxError as error:
        raise UserError(f"{path}: {key} cannot be read: {error}") from None
    return given


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


def read_prepare(path: Path, given: Any) -> dict[str, tuple[str, ...]]:
    """The key `prepare`: script and arguments, by data folder if there are several."""
    by_folder = given if isinstance(given, Mapping) else {"": given} if given else {}
    scripts = sorted(script.name for script in (ROOT / "data-prep").glob("*.sh"))
    for words in by_folder.values():
        if not isinstance(words, list) or not words:
            raise UserError(
                f"{path}: prepare needs a script of data-prep/ with its arguments, found {words!r}"
            )
        check_known(words[0], scripts, f"{path}: prepare: data-prep/ has no {words[0]}")
        for word in map(str, words):
            place = Path(word.partition("=")[2] if word.startswith("-") else word)
            if place.is_absolute() or ".." in place.parts or "://" in word:
                raise UserError(f"{path}: prepare names {word}; name folders inside the project")
    return {str(folder): tuple(map(str, words)) for folder, words in by_folder.items()}


def read_best(given: Any, axes: Mapping[str, Any], where: str) -> Best | None:
    """The key `best`, None if absent; UserError if it is invalid."""
    if not given:
        return None
    where = f"{where}: best"
    keys = validated(BestKeys, given, where)
    check_known(keys.axis, axes, f"{where}: there is no axis {keys.axis}")
    by = [key for key in BY if getattr(keys, key)]
    if len(by) != 1:
        raise UserError(
            f"{where}: write one of {', '.join(BY)} and a figure, such as {{axis: lr, highest: score}}"
        )
    return Best(keys.axis, parse_expression(getattr(keys, by[0]), where), by[0])


def read_tune(given: Any, axes: Mapping[str, Any], where: str) -> Tune | None:
    """The key `tune`, None if absent; UserError if it is invalid."""
    if not given:
        return None
    where = f"{where}: tune"
    keys = validated(TuneKeys, given, where)
    if keys.axis in axes:
        raise UserError(f"{where}: {keys.axis} is an axis of the study; tune another setting")
    if keys.axis == "seed":
        raise UserError(f"{where}: the seed cannot be tuned; write below seeds how many runs a row has")
    if not keys.axis.isidentifier():
        raise UserError(f"{where}: {keys.axis!r} is not a setting; use letters, digits and _")
    if bad := [value for value in keys.values if "/" in value]:
        raise UserError(f"{where}: {bad[0]!r} cannot be a value, after which folders are called; leave out /")
    if len({*keys.values}) < len(keys.values):
        raise UserError(f"{where}: a value stands twice in {', '.join(keys.values)}")
    if keys.bracket and not all(map(is_positive, keys.values)):
        raise UserError(f"{where}: bracket needs values that are numbers above 0")
    check_only(keys.only, axes, where)
    return Tune(keys.axis, keys.values, keys.updates, keys.by, keys.bracket, keys.only)


def is_positive(text: str) -> bool:
    """Whether a text is a number above 0."""
    try:
        return 0 < float(text) < float("inf")
    except ValueError:
        return False


def plotted_by(plot: Mapping[str, Any]) -> Sequence[str]:
    """What the curves run over, a panel each."""
    return plot.get("by") or ("updates",)


def read_plot(path: Path, given: Any) -> dict[str, Any]:
    """The key `plot`: which curves of the first seed are drawn, by what, the unit and its factor.

    `asks` is the question that the picture answers; `methods` names the method of which a row is a variant,
    whose colour it has; `baseline` the figure of the baselines that are drawn as horizontal lines; `log` asks
    for logarithmic axes.
    """
    if not given:
        return {}
    keys = validated(PlotKeys, given, f"{path}: plot")
    for method in keys.methods.values():
        check_known(method, NAMED, f"{path}: plot: methods names {method!r}")
    return {"y": f"{keys.curves} loss, bits", "factor": 1.0, **keys.model_dump(exclude_unset=True)}


def as_list(given: Any) -> list[Any]:
    """The value of a key that takes one value or a list, as a list."""
    return given if isinstance(given, list) else [given]


def check_only(only: Only, axes: Mapping[str, Any], where: str) -> None:
    """UserError for a choice below `only` that its axis does not have."""
    for axis, words in only.items():
        check_known(axis, axes, f"{where}: only: there is no axis {axis}")
        for word in words if axes[axis].closed else ():
            check_known(word, axes[axis].choices, f"{where}: only: {axis} has no {word}")


def check_format(text: str, where: str) -> str:
    """`text` if it is a number format or `count`; UserError for anything else."""
    if text != COUNT and not FORMAT.fullmatch(text):
        raise UserError(f"{where}: {text!r} is not a format; write one such as .2f, or {COUNT}")
    return text


def read_baseline(given: Any, where: str) -> Baseline:
    """A baseline of a YAML; UserError if it is invalid."""
    where = f"{where}: baseline"
    keys = validated(BaselineKeys, given, where)
    for figure in (path for path in keys.found if parse_expression(path, where).factor is not None):
        raise UserError(f"{where}: found has {figure}; name the figure without a factor")
    for path, margin in keys.margin.items():
        check_known(path, keys.found, f"{where}: margin has no figure {path} in found")
        if not margin:
            raise UserError(f"{where}: margin.{path} is 0; write by how much a row must be better")
    if keys.examples and any(margin < 0 for margin in keys.margin.values()):
        raise UserError(f"{where}: examples belongs to an accuracy, whose margin is positive")
    examples = parse_expression(keys.examples, where) if keys.examples else None
    return Baseline(keys.name, keys.found, keys.margin, examples)


def read_claim(
    given: Any, axes: Mapping[str, Axis], tables: Sequence[Mapping[str, Axis]], where: str
) -> Claim:
    """A claim of a YAML on tables, each given by the axes of its rows; UserError if it is invalid."""
    keys = validated(ClaimKeys, given, where)
    test = validated(TestKeys, keys.test, f"{where}: test")
    kinds = [kind for kind in (*PAIRS, *EXTREMES, RANK) if getattr(test, kind)]
    if len(kinds) != 1:
        raise UserError(f"{where}: a test has one of {', '.join((*PAIRS, *EXTREMES, RANK))}")
    kind = kinds[0]
    figure, *rows = getattr(test, kind)
    rows = (*rows, *test.among)
    check_claimed(rows, tables, where)
    check_only(keys.only, axes, where)
    if (test.examples or test.bootstrap) and kind not in ("difference", *EXTREMES):
        raise UserError(f"{where}: examples and bootstrap belong to scores that are compared, not to {kind}")
    if test.examples and test.bootstrap:
        raise UserError(f"{where}: write examples or bootstrap: true")
    if test.bootstrap and figure != "score":
        raise UserError(f"{where}: bootstrap is of score, the first metric of a GLUE task, not of {figure}")
    return Claim(
        keys.says,
        keys.where,
        kind,
        parse_expression(figure, where),
        rows,
        read_bound(test, kind, where),
        parse_expression(test.examples, where) if test.examples else None,
        test.bootstrap,
        claimed_figures(keys.paper, where),
        keys.only,
        keys.not_comparable,
    )


def claimed_figures(given: Any, where: str) -> tuple[str, ...]:
    """The figures of a claim's key `paper`, as printed; none without it. UserError if they do not exist."""
    if given is None:
        return ()
    where = f"{where}: paper"
    keys = validated(ClaimedKeys, given, where)
    table = table_of(keys.table, where)
    check_known(keys.value, table[0], f"{where}: {keys.table} has no column {keys.value}")
    rows = {next(iter(row.values())): row[keys.value] for row in table}
    for name in keys.rows:
        check_known(name, rows, f"{where}: {keys.table} has no row {name}")
    return tuple(rows[name] for name in keys.rows)


def table_of(name: str, where: str) -> list[dict[str, str]]:
    """A table of results/paper; UserError if there is none."""
    try:
        return read_table(name)
    except OSError:
        raise UserError(f"{where}: results/paper has no table {name}") from None


def read_bound(test: TestKeys, kind: str, where: str) -> Bound | None:
    """The bound of a test; None for kinds without one. UserError if it does not fit."""
    known = {RANK: ("at_least",)}.get(kind, () if kind in EXTREMES else BOUNDS)
    found = [key for key in BOUNDS if getattr(test, key) is not None]
    if len(found) != min(1, len(known)) or not {*found} <= {*known}:
        raise UserError(f"{where}: {kind} needs {' or '.join(known) or 'no bound'}")
    return Bound(found[0], getattr(test, found[0])) if found else None


def check_claimed(rows: Sequence[str], tables: Sequence[Mapping[str, Axis]], where: str) -> None:
    """UserError for a row that no table has."""
    for row in rows:
        words = row.split("/")
        if any(is_row(words, axes) for axes in tables):
            continue
        known = [name for axes in tables for axis in axes.values() for name in axis.choices]
        if all(axis.closed for axes in tables for axis in axes.values()):
            for word in words:
                check_known(word, known, f"{where}: there is no row {word}")
        forms = " or ".join(dict.fromkeys("/".join(axes) for axes in tables))
        raise UserError(f"{where}: there is no row {row}; a row is named {forms}")


def is_row(words: Sequence[str], axes: Mapping[str, Axis]) -> bool:
    """Whether the words are a choice of each axis, in order."""
    return len(words) == len(axes) and all(
        word in axis.choices or not axis.closed for word, axis in zip(words, axes.values(), strict=True)
    )


def read_table_spec(given: Any, axes: Mapping[str, Any], where: str) -> TableSpec:
    """A table of a YAML; UserError if it is invalid."""
    where = f"{where}: table"
    keys = validated(TableKeys, given, where)
    rows, papers = keys.rows or (list(axes)[-1],), as_list(keys.paper or [])
    for axis in rows:
        check_known(axis, axes, f"{where}: there is no axis {axis}")
    check_only(keys.only, axes, where)
    if keys.across and (len(rows) < 2 or keys.across != rows[-1]):
        raise UserError(f"{where}: across is {keys.across!r}; it must be the last of several axes in rows")
    if keys.across and any(form == COUNT for *_, form in keys.columns):
        raise UserError(f"{where}: a column beside across has a number's format such as .2f, not {COUNT}")
    if len(papers) > 1 and not keys.across:
        raise UserError(f"{where}: several papers need across; put the others into separate tables")
    return TableSpec(
        keys.title,
        {axis: axes[axis] for axis in rows},
        tuple(
            Column(title, parse_expression(text, where), check_format(form, where))
            for title, text, form in keys.columns
        ),
        keys.only,
        tuple(read_paper(paper, axes, rows, where) for paper in papers),
        keys.across,
        keys.average,
    )


def read_paper(given: Any, axes: Mapping[str, Any], rows: Sequence[str], where: str) -> PaperColumn:
    """The key `paper`; without `rows` a choice is found by its name or its label."""
    where = f"{where}: paper"
    keys = validated(PaperKeys, given, where)
    table = table_of(keys.table, where)
    key, value, by = keys.key or (next(iter(table[0])),), {"": keys.value}, ""
    if isinstance(keys.value, Mapping | list):
        try:
            [(by, value)] = keys.value.items()
            value = {str(choice): str(column) for choice, column in value.items()}
        except (AttributeError, ValueError):
            raise UserError(
                f"{where}: value is {keys.value!r:.80}; it is a column, or has a column for each choice of "
                "an axis, such as {model: {t1: ppl}}"
            ) from None
    for column in (*key, *value.values(), *([keys.average] if keys.average else [])):
        check_known(column, table[0], f"{where}: {keys.table} has no column {column}")
    if by and by not in rows:
        raise UserError(f"{where}: value depends on {by}, which is not a row of the table")
    matches = matched_rows(keys, table, key, axes[rows[0]], where)
    found = {
        ours: row
        for row in table
        for ours, wanted in matches.items()
        if wanted.casefold() == key_of(row, key).casefold()
    }
    return PaperColumn(keys.table, key, found, dict(value), by, keys.title, keys.average)


def matched_rows(
    keys: PaperKeys, table: Sequence[Mapping[str, str]], key: Sequence[str], axis: Axis, where: str
) -> dict[str, str]:
    """The paper's row of each choice of an axis: the named one, else that with its name or label."""
    theirs = [key_of(row, key) for row in table]
    known = {name.casefold() for name in theirs}
    matches = keys.rows or {
        name: word
        for name, choice in axis.choices.items()
        for word in (name, choice.label)
        if word.casefold() in known
    }
    for name, row in matches.items():
        if axis.closed:
            check_known(name, axis.choices, f"{where}: {axis.name} has no choice {name}")
        if row.casefold() not in known:
            raise UserError(f"{where}: {keys.table} has no row {row}{nearest(row, theirs)}")
    return matches
