"""Tables of a study: a row for each choice of some axes, columns of figures, the paper's rows beside them."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from lab.errors import UserError
from lab.papers import read_table
from lab.publish.tables import by_seed, markdown_table, spread
from lab.study.baseline import AT_BASELINE, at_baseline
from lab.study.notation import (
    COUNT,
    Record,
    as_list,
    check_format,
    check_keys,
    check_known,
    follow,
    nearest,
    numbers,
    parse_expression,
    read_only,
    row_name,
)
from lab.study.schema import Baseline, Column, PaperColumn, TableSpec
from lab.verdicts import range_of, rank_correlations

NONE = "–"


def key_of(row: Mapping[str, str], key: Sequence[str]) -> str:
    """How a row of a paper's table is found: the values of its `key`, joined by ", "."""
    return ", ".join(row[column] for column in key)


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


def figure_of(column: Column, records: Sequence[Record]) -> str:
    """A cell of the table: median and range over seeds, how many are true, or a dash."""
    if column.form == COUNT:
        found = [follow(record.get("found"), column.figure.path) for record in records]
        values = [bool(value) for value in found if value is not None]
        return f"{sum(values)} of {len(values)}" if values else NONE
    values = list(numbers(column.figure, records))
    if not values:
        return NONE
    some = f"; {len(values)} of {len(records)} seeds" if len(values) < len(records) else ""
    return spread(values, f"{{:{column.form}}}") + some


def write_table(spec: TableSpec, records: Sequence[Record], baselines: Sequence[Baseline]) -> str:
    """The table in Markdown: our rows, those of the baselines, and the papers'."""
    title = [f"**{spec.title}**"] if spec.title else []
    write = _across if spec.across else _beside_the_paper
    return "\n\n".join([*title, *write(spec, records, baselines)])


def _beside_the_paper(spec: TableSpec, records: Sequence[Record], baselines: Sequence[Baseline]) -> list[str]:
    """A column for each figure and the paper's, and the rank correlation with it."""
    rows = spec.rows_of(records)
    learned_nothing = at_baseline(rows, baselines)
    header = ["", *(column.title for column in spec.columns), *([spec.paper.title] if spec.paper else [])]
    lines = []
    for key, group in rows.items():
        cells = [figure_of(column, group) for column in spec.columns]
        theirs = [spec.paper_figure(key) or NONE] if spec.paper else []
        mark = "\\*" if row_name(key) in learned_nothing else ""
        lines.append([spec.label(key) + mark, *cells, *theirs, str(len(group))])
    for baseline in baselines:
        pseudo = baseline.as_record(next(iter(rows.values()))[0])
        cells = [figure_of(column, [pseudo]) if column.form != COUNT else NONE for column in spec.columns]
        if any(cell != NONE for cell in cells):
            lines.append([baseline.name, *cells, *([NONE] if spec.paper else []), ""])
    order = correlation(spec, {key: rows[key] for key in rows if row_name(key) not in learned_nothing})
    return [markdown_table([*header, "seeds"], lines), *([AT_BASELINE] if learned_nothing else []), *order]


def correlation(spec: TableSpec, rows: Mapping[tuple[str, ...], Sequence[Record]]) -> list[str]:
    """A sentence on the order of the rows beside the paper's, if there are rows enough for one."""
    ours = {row_name(key): by_seed(spec.columns[0].figure, group) for key, group in rows.items()}
    found, common = rank_correlations(ours, spec.paper_values(rows))
    if not found:
        return []
    seeds = f", {len(found)} seeds" if len(found) > 1 else ""
    return [
        f"Rank correlation with the paper's column (Spearman, {len(common)} rows{seeds}): {range_of(found)}."
    ]


def _across(spec: TableSpec, records: Sequence[Record], baselines: Sequence[Baseline]) -> list[str]:
    """A column for each choice of an axis, such as the tasks of a benchmark, and their average."""
    figure, *others = spec.columns
    cells = spec.rows_of(records)
    values = {key: list(numbers(figure.figure, group)) for key, group in cells.items()}
    rows: dict[tuple[str, ...], list[Record]] = {}
    for key, group in cells.items():
        rows.setdefault(key[:-1], []).extend(group)
    axis, there = spec.rows[spec.across], {key[-1] for key in cells}
    names = [*(name for name in axis.choices if name in there), *sorted(there - set(axis.choices))]
    averaged = axis.usual if spec.average and there.issuperset(axis.usual) else []
    most = {name: max(len(values.get((*row, name), [])) for row in rows) for name in names}
    learned_nothing = at_baseline(cells, baselines)

    def shown(key: tuple[str, ...]) -> str:
        """Our figure; how many seeds it has where others of its column have more."""
        text, seeds = figure_of(figure, cells.get(key, [])), len(values.get(key, []))
        if text == NONE:
            return NONE
        marked = f"{text}\\*" if row_name(key) in learned_nothing else text
        return marked if seeds == most[key[-1]] else f"{marked} [{seeds} of {most[key[-1]]} seeds]"

    def average(row: tuple[str, ...]) -> list[str]:
        """The mean of the medians that the row shows; a dash if one of the choices is missing."""
        if not averaged:
            return []
        found = [values.get((*row, name)) for name in averaged]
        return [f"{statistics.fmean(map(statistics.median, found)):{figure.form}}" if all(found) else NONE]

    lines = [
        [
            spec.label(row),
            *(shown((*row, name)) for name in names),
            *average(row),
            *(span(column, group) for column in others),
        ]
        for row, group in rows.items()
    ]
    rest, no_average = [NONE] * len(others), [NONE] if averaged else []
    first = [next(group[0] for key, group in cells.items() if key[-1] == name) for name in names]
    for baseline in baselines:
        figures = [figure_of(figure, [baseline.as_record(one)]) for one in first]
        if figure.form != COUNT and any(text != NONE for text in figures):
            lines.append([baseline.name, *figures, *no_average, *rest])
    for paper in spec.papers:
        own = {key_of(line, paper.key): line for line in paper.rows.values()}
        for name, line in own.items():
            figures = [line[paper.value[name]] if name in paper.value else NONE for name in names]
            mean = [line[paper.average]] if paper.average and averaged else no_average
            lines.append([f"{name} ({paper.title})", *figures, *mean, *rest])
    titles = [axis.choices[name].label if name in axis.choices else name for name in names]
    header = ["", *titles, *([spec.average] if averaged else []), *(column.title for column in others)]
    mark = [AT_BASELINE] if learned_nothing else []
    return [f"{figure.title}:", markdown_table(header, lines), *mark]


def span(column: Column, records: Sequence[Record]) -> str:
    """A figure of a whole row, from the lowest to the highest."""
    values = [f"{value:{column.form}}" for value in sorted(numbers(column.figure, records))]
    return " to ".join(dict.fromkeys((values[0], values[-1]))) if values else NONE
