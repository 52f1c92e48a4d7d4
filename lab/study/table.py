"""Tables and claims of a study, made of its records."""

import math
import statistics
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from lab.publish.tables import by_seed, markdown_table, seed_of, spread
from lab.resampling import Predictions, half_interval
from lab.study.records import OLDER, present
from lab.study.schema import (
    COUNT,
    Baseline,
    Best,
    Claim,
    Column,
    Record,
    Study,
    TableSpec,
    follow,
    kept_by,
    numbers,
    parse_expression,
    row_name,
)
from lab.verdicts import (
    CONFIRMED,
    NOT_COMPARABLE,
    NOT_RUN,
    UNDECIDED,
    Noise,
    Values,
    Verdict,
    binomial_noise,
    judge_extreme,
    judge_order,
    judge_pair,
    no_noise,
    range_of,
    rank_correlations,
    withheld,
)

Rows = Mapping[tuple[str, ...], Sequence[Record]]
"""The records of the rows of a table, by the choices that name each row."""
NONE = "–"
AT_BASELINE = "\\*: not ahead of the baseline by its margin: the row has learned nothing."
WITHIN_NOISE = (
    "\\*: not ahead of the baseline by its margin or by more than the noise of the test set: the row has "
    "learned nothing."
)


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
    """The table in Markdown: our rows, the baselines' and the papers'."""
    title = [f"**{spec.title}**"] if spec.title else []
    write = _across if spec.across else _beside_the_paper
    return "\n\n".join([*title, *write(spec, records, baselines)])


def _beside_the_paper(spec: TableSpec, records: Sequence[Record], baselines: Sequence[Baseline]) -> list[str]:
    """A column for each figure and the paper's, and the rank correlation with it.

    Baselines and the correlation are told from records of the present settings.
    """
    rows, now = spec.rows_of(records), spec.rows_of(present(records))
    learned_nothing = at_baseline(rows, baselines)
    header = ["", *(column.title for column in spec.columns), *([spec.paper.title] if spec.paper else [])]
    lines = []
    for key, group in rows.items():
        cells = [figure_of(column, group) for column in spec.columns]
        theirs = [spec.paper_figure(key) or NONE] if spec.paper else []
        mark = "\\*" if row_name(key) in learned_nothing else ""
        lines.append([spec.label(key) + mark, *cells, *theirs, str(len(group))])
    for baseline in baselines:
        pseudo = baseline.as_record(next(iter((now or rows).values()))[0])
        cells = [figure_of(column, [pseudo]) if column.form != COUNT else NONE for column in spec.columns]
        if any(cell != NONE for cell in cells):
            lines.append([baseline.name, *cells, *([NONE] if spec.paper else []), ""])
    order = correlation(spec, {key: now[key] for key in now if row_name(key) not in learned_nothing})
    mark = [note_of_star(rows, baselines)] if learned_nothing else []
    return [markdown_table([*header, "seeds"], lines), *mark, *order]


def correlation(spec: TableSpec, rows: Mapping[tuple[str, ...], Sequence[Record]]) -> list[str]:
    """A sentence comparing the order of the rows with the paper's, if there are enough rows."""
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
    cells = spec.rows_of(records)
    table = AcrossTable(spec, cells, at_baseline(cells, baselines))
    mark = [note_of_star(cells, baselines)] if table.learned_nothing else []
    lines = markdown_table(table.header, table.lines(baselines))
    return [f"{spec.columns[0].title}:", lines, *mark]


@dataclass(frozen=True)
class AcrossTable:
    """A table of `spec` with a column for each choice of its axis `across`, which is the last of its rows.

    `cells` holds the records of each figure by the choices of its row and its column, `learned_nothing` the
    names of the cells that are at the baseline. The further columns of `spec` show figures of whole rows.
    """

    spec: TableSpec
    cells: Rows
    learned_nothing: Collection[str]

    @cached_property
    def values(self) -> dict[tuple[str, ...], list[float]]:
        """The figure of each seed, by cell."""
        figure = self.spec.columns[0].figure
        return {key: list(numbers(figure, group)) for key, group in self.cells.items()}

    @cached_property
    def rows(self) -> dict[tuple[str, ...], list[Record]]:
        """The records of each row, by its choices."""
        found: dict[tuple[str, ...], list[Record]] = {}
        for key, group in self.cells.items():
            found.setdefault(key[:-1], []).extend(group)
        return found

    @cached_property
    def names(self) -> list[str]:
        """The choices that have a column."""
        choices, there = self.spec.rows[self.spec.across].choices, {key[-1] for key in self.cells}
        return [*(name for name in choices if name in there), *sorted(there - set(choices))]

    @cached_property
    def averaged(self) -> Collection[str]:
        """The choices whose average the table shows; none if one of them has no column."""
        usual = self.spec.rows[self.spec.across].usual
        return usual if self.spec.average and set(usual) <= set(self.names) else []

    @cached_property
    def most(self) -> dict[str, int]:
        """The largest number of seeds in each column."""
        return {name: max(len(self.values.get((*row, name), [])) for row in self.rows) for name in self.names}

    @property
    def header(self) -> list[str]:
        """The titles of the columns."""
        _, *others = self.spec.columns
        titles = map(self.spec.rows[self.spec.across].label, self.names)
        average = [self.spec.average] if self.averaged else []
        return ["", *titles, *average, *(column.title for column in others)]

    def shown(self, key: tuple[str, ...]) -> str:
        """Our figure; how many seeds it has where others of its column have more."""
        text, seeds = figure_of(self.spec.columns[0], self.cells.get(key, [])), len(self.values.get(key, []))
        if text == NONE:
            return NONE
        marked = f"{text}\\*" if row_name(key) in self.learned_nothing else text
        most = self.most[key[-1]]
        return marked if seeds == most else f"{marked} [{seeds} of {most} seeds]"

    def average(self, row: tuple[str, ...]) -> list[str]:
        """The mean of the medians that the row shows.

        A dash if one is missing, at the baseline or of earlier settings.
        """
        if not self.averaged:
            return []
        keys = [(*row, name) for name in self.averaged]
        if any(not self.values.get(key) or row_name(key) in self.learned_nothing for key in keys):
            return [NONE]
        if any(OLDER in record for key in keys for record in self.cells[key]):
            return [NONE]
        mean = statistics.fmean(statistics.median(self.values[key]) for key in keys)
        return [f"{mean:{self.spec.columns[0].form}}"]

    def like(self, name: str) -> Record:
        """A record of a column, of the present settings if it has any."""
        found = [record for key, group in self.cells.items() if key[-1] == name for record in group]
        return (present(found) or found)[0]

    def lines(self, baselines: Sequence[Baseline]) -> list[list[str]]:
        """Our rows, the baselines' and the papers'."""
        figure, *others = self.spec.columns
        lines = [
            [
                self.spec.label(row),
                *(self.shown((*row, name)) for name in self.names),
                *self.average(row),
                *(span(column, group) for column in others),
            ]
            for row, group in self.rows.items()
        ]
        first = [self.like(name) for name in self.names]
        rest, no_average = [NONE] * len(others), [NONE] if self.averaged else []
        lines += [[*row, *no_average, *rest] for row in rows_of_baselines(figure, baselines, first)]
        lines += [[*row, *rest] for row in rows_of_papers(self.spec, self.names, bool(self.averaged))]
        return lines


def rows_of_papers(spec: TableSpec, names: Sequence[str], averaged: bool) -> Iterator[list[str]]:
    """The rows of the papers' tables: name, the figure of each choice and, if `averaged`, their mean."""
    for paper in spec.papers:
        own = {key_of(line, paper.key): line for line in paper.rows.values()}
        for row, line in own.items():
            figures = [line[paper.value[name]] if name in paper.value else NONE for name in names]
            mean = [line[paper.average] if paper.average else NONE] if averaged else []
            yield [f"{row} ({paper.title})", *figures, *mean]


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


def at_baseline(rows: Rows, baselines: Sequence[Baseline]) -> list[str]:
    """The rows with a median figure that is not better than a baseline's by its margin and the noise."""
    return [
        row_name(key)
        for key, group in rows.items()
        if any(lead.ahead <= max(lead.margin, lead.noise) for lead in leads(group, baselines))
    ]


def note_of_star(rows: Rows, baselines: Sequence[Baseline]) -> str:
    """What a star says in a table of these rows: whether the noise of the test set counts there, too."""
    noisy = any(lead.noise for group in rows.values() for lead in leads(group, baselines))
    return WITHIN_NOISE if noisy else AT_BASELINE


@dataclass(frozen=True)
class Lead:
    """How far a row is ahead of a baseline in one figure, the margin that it needs, and the noise."""

    ahead: float
    margin: float
    noise: float


def leads(records: Sequence[Record], baselines: Sequence[Baseline]) -> Iterator[Lead]:
    """The lead of a row, by its median, in each figure with a margin."""
    for baseline in baselines:
        pseudo = baseline.as_record(records[0])
        for path, margin in baseline.margin.items():
            figure = parse_expression(path, "baseline")
            values, level = list(numbers(figure, records)), figure(pseudo)
            if values and level is not None:
                ahead = math.copysign(1, margin) * (statistics.median(values) - level)
                yield Lead(ahead, abs(margin), baseline.noise(level, records))


PAIRS, EXTREMES, RANK = ("ratio", "difference"), ("lowest", "highest"), "rank"
EDGE = "the best value tried is the least or the largest"
ONE_START = "fewer encoders than seeds"
NO_PREDICTIONS = "the records keep no predictions"
NAMED = 3
"""The most rows that a reason names."""


def decide(
    claim: Claim,
    values: Values,
    at_baseline: Collection[str] = (),
    paper: Mapping[str, float] | None = None,
    doubts: Mapping[str, Collection[str]] | None = None,
    noise: Noise = no_noise,
) -> Verdict:
    """The verdict on a claim, from the claimed figure's `values`.

    `at_baseline` names the rows that have learned nothing, `paper` has the column of the paper by row.
    `doubts` has the rows that decide nothing, by the reason why. `noise` is the test set's.
    """
    verdict = judge(claim, values, at_baseline, paper or {}, noise)
    if claim.not_comparable and verdict.outcome != NOT_RUN:
        return withheld(verdict, NOT_COMPARABLE, claim.not_comparable)
    asked = (paper or {}) if claim.kind == RANK else claim.rows if len(claim.rows) > 1 else tuple(values)
    if verdict.outcome in (NOT_RUN, NOT_COMPARABLE):
        return verdict
    for reason, rows in (doubts or {}).items():
        if doubtful := [row for row in asked if row in rows]:
            named = ", ".join(doubtful) if len(doubtful) <= NAMED else f"{len(doubtful)} rows"
            return withheld(verdict, UNDECIDED, f"{reason} ({named})")
    return verdict


def judge(
    claim: Claim,
    values: Values,
    at_baseline: Collection[str],
    paper: Mapping[str, float],
    noise: Noise,
) -> Verdict:
    """The verdict that the figures alone give."""
    rows = claim.rows or tuple(values)
    if claim.kind in EXTREMES and len(claim.rows) == 1:
        rows = (*claim.rows, *(row for row in values if row != claim.rows[0]))
    missing = [row for row in rows if not values.get(row)]
    if claim.kind == RANK:
        learned = {row: found for row, found in values.items() if row not in at_baseline}
        return judge_order(learned, paper, claim.bound.number)
    if missing and (claim.kind in PAIRS or missing[0] == rows[0]):
        return Verdict(NOT_RUN, f"no figure of {', '.join(missing)}")
    if len(rows) - len(missing) < 2:
        return Verdict(NOT_RUN, "there is no other row")
    standing = [row for row in rows if row in at_baseline]
    words = f"{', '.join(standing)} at the baseline"
    left = [row for row in rows if row not in standing and values.get(row)]
    if standing and (claim.kind in PAIRS or rows[0] in standing or len(left) < 2):
        return Verdict(NOT_COMPARABLE, words)
    if claim.kind in EXTREMES:
        verdict = judge_extreme([*left, *missing], values, claim.kind == "lowest", noise)
        decided = verdict.outcome != CONFIRMED or not standing
        return verdict if decided else Verdict(NOT_COMPARABLE, f"{verdict.effect}; {words}")
    return judge_pair(values[rows[0]], values[rows[1]], claim.bound, claim.kind == "ratio", noise(*rows[:2]))


def doubts_of(study: Study, claim: Claim, rows: Mapping[str, Sequence[Record]]) -> dict[str, list[str]]:
    """The rows that cannot decide the claim, by the reason why.

    Those are rows whose seeds share a checkpoint that they start from, since they repeat one training; rows
    without the predictions that the claim's bootstrap needs; and rows whose tuned or best number is the least
    or the largest tried, since a better one may lie beyond.
    """
    tests: dict[str, Callable[[Sequence[Record]], bool]] = {}
    if study.start:
        tests[ONE_START] = share_a_start
    if claim.bootstrap:
        tests[NO_PREDICTIONS] = lambda records: not predictions_of(records)
    tests[EDGE] = lambda records: any(is_unbracketed(record, study.best) for record in records)
    return {reason: [row for row, group in rows.items() if test(group)] for reason, test in tests.items()}


def is_unbracketed(record: Record, best: Best | None = None) -> bool:
    """Whether the record's tuned or `best` number is the least or the largest tried."""
    if best:
        chosen, words = record["cell"][best.axis], record["best"]
    elif "tuned" in record:
        chosen, words = record["tuned"]["chosen"], record["tuned"]["tried"]
    else:
        return False
    try:
        tried = sorted(map(float, words))
    except ValueError:  # words have no order
        return False
    return float(chosen) in (tried[0], tried[-1])


def share_a_start(records: Sequence[Record]) -> bool:
    """Whether fewer checkpoints were fine-tuned than there are seeds."""
    return len({record.get("start", {}).get("fingerprint") for record in records}) < len(records)


def verdicts(study: Study, records: Sequence[Record]) -> list[tuple[Claim, Verdict]]:
    """Every claim with its verdict on one group's records, without records of earlier settings."""
    found, records = [], present(records)
    for claim in study.claims:
        if not kept_by(claim.only, records):
            continue
        spec, rows = claimed_table(study, claim, records)
        theirs = ", ".join(claim.paper or beside(claim, spec, rows))
        found.append((claim, replace(verdict_on(study, claim, spec, rows), paper=theirs)))
    return found


def verdict_on(study: Study, claim: Claim, spec: TableSpec, rows: Rows) -> Verdict:
    """The verdict on a claim from the rows of a table, which its words call by their labels."""
    if claim.rows and not {*claim.rows} & {*map(row_name, rows)}:
        return Verdict(NOT_RUN)
    keys = [*rows, *(key for row in claim.rows if len(key := tuple(row.split("/"))) == len(spec.rows))]
    labels = {row_name(key): spec.label(key, "/") for key in keys}
    groups = {labels[row_name(key)]: group for key, group in rows.items()}
    asked = replace(claim, rows=tuple(labels.get(row, row) for row in claim.rows))
    values = {row: by_seed(claim.figure, group) for row, group in groups.items()}
    return decide(
        asked,
        values,
        [labels[row] for row in at_baseline(rows, study.baselines)],
        {labels[row]: figure for row, figure in spec.paper_values(rows).items()},
        doubts_of(study, asked, groups),
        noise_of(asked, groups, values),
    )


def claimed_table(study: Study, claim: Claim, records: Sequence[Record]) -> tuple[TableSpec, Rows]:
    """The first table that has most of a claim's rows, and its rows of the records that it is about."""
    asked, kept = {*claim.rows}, kept_by(claim.only, records)
    tables = [(spec, spec.rows_of(kept)) for spec in study.tables]
    return max(tables, key=lambda table: len(asked.intersection(map(row_name, table[1]))))


def claimed_records(study: Study, claim: Claim, records: Sequence[Record]) -> list[Record]:
    """The records of the rows that a claim compares."""
    spec, rows = claimed_table(study, claim, records)
    asked = claim.rows if len(claim.rows) > 1 else spec.paper_values(rows) if claim.kind == RANK else ()
    groups = [group for key, group in rows.items() if not asked or row_name(key) in asked]
    return [record for group in groups for record in group]


def beside(claim: Claim, spec: TableSpec, rows: Rows) -> list[str]:
    """The paper's figures beside the rows of a pair, or the first row, if they are of the claim's table."""
    if spec.paper is None or not spec.paper.is_at(claim.where):
        return []
    theirs = {row_name(key): spec.paper_figure(key) for key in rows}
    named = claim.rows if claim.kind in PAIRS else claim.rows[:1]
    return [figure for row in named if (figure := theirs.get(row))]


def noise_of(claim: Claim, rows: Mapping[str, Sequence[Record]], values: Values) -> Noise:
    """The noise of the test set, from the predictions in the records or from its size; none if not asked."""
    if claim.bootstrap:
        return lambda first, second: bootstrapped(rows[first], rows[second])
    examples = fewest_examples(claim, rows)
    return no_noise if examples is None else binomial_noise(values, examples)


def bootstrapped(first: Sequence[Record], second: Sequence[Record]) -> float:
    """`half_interval` of two rows; 0 if one of them has no predictions."""
    ours, theirs = predictions_of(first), predictions_of(second)
    return half_interval(first[0]["found"]["metric"], ours, theirs) if ours and theirs else 0.0


def predictions_of(records: Sequence[Record]) -> dict[int, Predictions]:
    """The predictions of a row by seed; empty unless all records have them."""
    found = {seed_of(record): record["found"].get("predictions") for record in records}
    return {seed: Predictions(**one) for seed, one in found.items()} if all(found.values()) else {}


def fewest_examples(claim: Claim, rows: Mapping[str, Sequence[Record]]) -> int | None:
    """The size of the smallest test set of the claimed rows; None if the claim does not ask for it."""
    if claim.examples is None:
        return None
    groups = [group for row, group in rows.items() if row in claim.rows]
    return min((int(value) for group in groups for value in numbers(claim.examples, group)), default=None)
