"""A study's YAML, read into the classes of schema.py; docs/studies.md describes the keys.

Each part of the YAML has a class in keys.py, which pydantic fills: it decides which keys exist, and their
types. The functions `read_...`, those of axes and tables in files of their own, check what depends on other
parts, such as a row that is not an axis.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import product
from pathlib import Path
from typing import Any

from jinja2 import Environment, TemplateSyntaxError, nodes
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from lab.errors import UserError, check_known, nearest
from lab.files import ROOT
from lab.measure import MEASURES
from lab.methods import NAMED
from lab.study.declared_axes import (
    check_conditional,
    check_groups,
    check_only,
    check_placeholders,
    read_axis,
    with_text_keys,
)
from lab.study.declared_tables import read_baseline, read_claim, read_table_spec
from lab.study.keys import BestKeys, PlotKeys, StudyKeys, TuneKeys, as_list, validated
from lab.study.schema import (
    BY,
    GIVEN,
    STUDIES,
    Axis,
    Best,
    Expression,
    Study,
    TableSpec,
    Tune,
    parse_expression,
)

SAME = ("about", "asks", "config", "data", "start", "keep", "seeds", "evaluate", "checkpoint")
"""Keys that a study takes over unchanged."""
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
"""Words of an answer whose first argument is a figure, see `lab.study.answer.Answer`."""
OF_RECORDS = ("cell.*", "settings.*", "data.*", "tuned.*", "environment.*")
"""Figures of a record besides those of its measure."""


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
