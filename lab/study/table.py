"""Tables of a study: a row for each choice of some axes, columns of figures, the paper's rows beside them."""

import statistics
from collections.abc import Iterator, Mapping, Sequence

from lab.publish.tables import by_seed, markdown_table, spread
from lab.study.schema import (
    COUNT,
    Baseline,
    Column,
    Record,
    TableSpec,
    follow,
    numbers,
    parse_expression,
    row_name,
)
from lab.verdicts import range_of, rank_correlations

NONE = "–"
AT_BASELINE = "\\*: within the margin of the baseline, so nothing has been learned there."


def key_of(row: Mapping[str, str], key: Sequence[str]) -> str:
    """How a row of a paper's table is found: the values of its `key`, joined by ", "."""
    return ", ".join(row[column] for column in key)


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
    first = [next(group[0] for key, group in cells.items() if key[-1] == name) for name in names]
    rest, no_average = [NONE] * len(others), [NONE] if averaged else []
    lines += [[*row, *no_average, *rest] for row in rows_of_baselines(figure, baselines, first)]
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


def rows_of_baselines(
    figure: Column, baselines: Sequence[Baseline], records: Sequence[Record]
) -> Iterator[list[str]]:
    """The baselines that have the figure: name, and the figure beside each of the records."""
    for baseline in baselines:
        figures = [figure_of(figure, [baseline.as_record(one)]) for one in records]
        if figure.form != COUNT and any(text != NONE for text in figures):
            yield [baseline.name, *figures]


def span(column: Column, records: Sequence[Record]) -> str:
    """A figure of a whole row, from the lowest to the highest."""
    values = [f"{value:{column.form}}" for value in sorted(numbers(column.figure, records))]
    return " to ".join(dict.fromkeys((values[0], values[-1]))) if values else NONE


def at_baseline(rows: Mapping[tuple[str, ...], Sequence[Record]], baselines: Sequence[Baseline]) -> list[str]:
    """The names of the rows of which the median of some figure comes within its margin of a baseline's."""
    found = []
    for key, group in rows.items():
        for baseline in baselines:
            pseudo = baseline.as_record(group[0])
            for path, margin in baseline.margin.items():
                figure = parse_expression(path, "baseline")
                values, level = list(numbers(figure, group)), figure(pseudo)
                if values and level is not None and abs(statistics.median(values) - level) <= margin:
                    found.append(row_name(key))
    return list(dict.fromkeys(found))
