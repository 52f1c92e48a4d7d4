"""The tables of a study's YAML, with the papers' columns, baselines and claims."""

from collections.abc import Mapping, Sequence
from typing import Any

from lab.errors import UserError, check_known, nearest
from lab.papers import read_table
from lab.study.declared_axes import check_only
from lab.study.keys import (
    BaselineKeys,
    ClaimedKeys,
    ClaimKeys,
    PaperKeys,
    TableKeys,
    TestKeys,
    as_list,
    validated,
)
from lab.study.schema import (
    COUNT,
    FORMAT,
    Axis,
    Baseline,
    Claim,
    Column,
    PaperColumn,
    TableSpec,
    parse_expression,
)
from lab.study.table import EXTREMES, PAIRS, RANK, key_of
from lab.verdicts import BOUNDS, Bound


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
