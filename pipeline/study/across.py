"""A table with a column for each choice of an axis, such as the tasks of a benchmark, and their average."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.papers import read_table
from pipeline.reports.tables import markdown_table
from pipeline.study.notation import COUNT, numbers
from pipeline.study.records import Record, grouped
from pipeline.study.table import (
    NONE,
    Baseline,
    Column,
    PaperColumn,
    TableSpec,
    at_baseline,
    figure_of,
    key_of,
    row_name,
    rows_of,
)

AT_BASELINE = "\\*: within the margin of the baseline, so nothing has been learned there."


def span(column: Column, records: Sequence[Record]) -> str:
    """A figure of a whole row, from the lowest to the highest."""
    values = [f"{value:{column.form}}" for value in sorted(numbers(column.figure, records))]
    return " to ".join(dict.fromkeys((values[0], values[-1]))) if values else NONE


class AcrossTable:
    """The table of `spec` over `records`, in Markdown with `write`."""

    def __init__(
        self,
        spec: TableSpec,
        axes: Mapping[str, Any],
        records: Sequence[Record],
        baselines: Sequence[Baseline],
    ) -> None:
        self.spec = spec
        self.cells = rows_of(spec, axes, records)
        self.rows = grouped((one for group in self.cells.values() for one in group), self._row_of)
        self.choices = dict(axes[spec.across].choices)
        there = {key[-1] for key in self.cells}
        self.columns = [name for name in self.choices if name in there]
        self.columns += sorted(there - set(self.columns))
        averaged = [name for name, choice in self.choices.items() if not choice.on_request]
        self.averaged = averaged if spec.average and there.issuperset(averaged) else []
        self.labels = {axis: axes[axis].choices for axis in spec.rows[:-1]}
        self.baselines = baselines
        self.at_baseline = set(at_baseline(self.cells, baselines))

    def _row_of(self, record: Record) -> tuple[str, ...]:
        return tuple(str(record["cell"][axis]) for axis in self.spec.rows[:-1])

    def write(self) -> str:
        """Our rows, those of the baselines, and the papers'."""
        figure, *others = self.spec.columns
        titles = [self.choices[name].label if name in self.choices else name for name in self.columns]
        average = [self.spec.average] if self.averaged else []
        header = ["", *titles, *average, *(column.title for column in others)]
        lines = [
            [
                self.label(row),
                *(self.cell(row, name) for name in self.columns),
                *([self.average(row)] if average else []),
                *(span(column, group) for column in others),
            ]
            for row, group in self.rows.items()
        ]
        empty = [NONE] * len(others)
        lines += [[line[0], *line[1:], *([NONE] if average else []), *empty] for line in self.baseline_rows()]
        lines += [[*line, *empty] for paper in self.spec.papers for line in self.paper_rows(paper)]
        title = [f"**{self.spec.title}**"] if self.spec.title else []
        notes = [AT_BASELINE] if self.at_baseline else []
        return "\n\n".join([*title, f"{figure.title}:", markdown_table(header, lines), *notes])

    def label(self, row: tuple[str, ...]) -> str:
        """How a reader sees a row."""
        names = zip(row, self.labels.values(), strict=True)
        return ", ".join(known[name].label if name in known else name for name, known in names)

    def cell(self, row: tuple[str, ...], name: str) -> str:
        """Our figure; how many seeds it has where others of its column have more."""
        group = self.cells.get((*row, name), [])
        text, seeds = figure_of(self.spec.columns[0], group), self.seeds(row, name)
        most = max(self.seeds(other, name) for other in self.rows)
        if text == NONE:
            return NONE
        marked = f"{text}\\*" if row_name((*row, name)) in self.at_baseline else text
        return marked if seeds == most else f"{marked} [{seeds} of {most} seeds]"

    def seeds(self, row: tuple[str, ...], name: str) -> int:
        """How many runs have the figure."""
        return len(self.values(row, name))

    def values(self, row: tuple[str, ...], name: str) -> list[float]:
        """Our figures over the seeds."""
        return list(numbers(self.spec.columns[0].figure, self.cells.get((*row, name), [])))

    def average(self, row: tuple[str, ...]) -> str:
        """The mean of the medians that the row shows; a dash if one of the choices is missing."""
        figures = [self.values(row, name) for name in self.averaged]
        if not all(figures):
            return NONE
        return f"{statistics.fmean(map(statistics.median, figures)):{self.spec.columns[0].form}}"

    def baseline_rows(self) -> list[list[str]]:
        """A row for each baseline that has a figure; those of a column are of its first record."""
        found = []
        for baseline in self.baselines:
            first = [
                next(group[0] for key, group in self.cells.items() if key[-1] == x) for x in self.columns
            ]
            figures = [figure_of(self.spec.columns[0], [baseline.as_record(one)]) for one in first]
            if self.spec.columns[0].form != COUNT and any(text != NONE for text in figures):
                found.append([baseline.name, *figures])
        return found

    def paper_rows(self, paper: PaperColumn) -> list[list[str]]:
        """The rows of a paper that have a method of ours, in the paper's order."""
        named = {name.casefold() for name in paper.rows.values()}
        return [
            [
                f"{key_of(line, paper.key)} ({paper.title})",
                *(line[paper.value[name]] if name in paper.value else NONE for name in self.columns),
                *([line[paper.average] if paper.average else NONE] if self.averaged else []),
            ]
            for line in read_table(paper.table)
            if key_of(line, paper.key).casefold() in named
        ]
