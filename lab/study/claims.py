"""A statement of a paper as a test over records, and its verdict.

    - says: linear attention ends as low as softmax
      where: Figure 2
      test: {ratio: [loss_nats, elu, softmax], at_most: 1.1}

Tests: `ratio` and `difference` of a figure of two rows, `at_most` or `at_least` a number, or `within` a
margin of a tie, which is ours; `lowest` and `highest`: the row that has the least or the most of a figure,
over all others or those `among`; `rank`: the correlation (Spearman) of a figure with the paper's column, at
least a number. With `examples`, the path of the size of the test set, the figure is an accuracy in percent,
and the noise of the test set counts.

A row is named by the choices of the table's rows, joined by "/". `only` keeps a claim to these choices of an
axis, such as a preset. Whatever the interval says, `not_comparable` and `undecided` give a reason why the
records decide nothing: both rows on one plateau, one rate for all, repeats of one encoder.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from statistics import mean

from lab.publish.tables import (
    by_seed,
)
from lab.study.records import OLDER
from lab.study.schema import (
    Claim,
    Record,
    Study,
    kept_by,
    numbers,
    row_name,
)
from lab.study.table import at_baseline
from lab.verdicts import (
    CONFIRMED,
    CONTRADICTED,
    NOT_COMPARABLE,
    NOT_RUN,
    UNDECIDED,
    Values,
    Verdict,
    judge_extreme,
    judge_order,
    judge_pair,
    test_set_noise,
    withheld,
)

PAIRS, EXTREMES, RANK = ("ratio", "difference"), ("lowest", "highest"), "rank"


def decide(
    claim: Claim,
    values: Values,
    at_baseline: Collection[str] = (),
    paper: Mapping[str, float] | None = None,
    unbracketed: Collection[str] = (),
    examples: int | None = None,
) -> Verdict:
    """The verdict on a claim, from the claimed figure's `values`.

    `at_baseline` names the rows that have learned nothing, `paper` has the column of the paper by row.
    `unbracketed` names the rows whose tuned setting is the first or the last value tried: another value may
    be better still, so they decide nothing. `examples` is the size of the test set.
    """
    verdict = judge(claim, values, at_baseline, paper or {}, examples)
    if claim.withheld and verdict.outcome != NOT_RUN:
        return withheld(verdict, *claim.withheld)
    asked = (paper or {}) if claim.kind == RANK else claim.rows if len(claim.rows) > 1 else tuple(values)
    if verdict.outcome in (CONFIRMED, CONTRADICTED) and (
        edge := [row for row in asked if row in unbracketed]
    ):
        return withheld(
            verdict, UNDECIDED, f"the best value tried is the first or the last of {', '.join(edge)}"
        )
    return verdict


def judge(
    claim: Claim,
    values: Values,
    at_baseline: Collection[str],
    paper: Mapping[str, float],
    examples: int | None,
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
        verdict = judge_extreme([*left, *missing], values, claim.kind == "lowest")
        decided = verdict.outcome != CONFIRMED or not standing
        return verdict if decided else Verdict(NOT_COMPARABLE, f"{verdict.effect}; {words}")
    first, second = values[rows[0]], values[rows[1]]
    noise = test_set_noise(mean(first.values()), mean(second.values()), examples) if examples else 0.0
    return judge_pair(first, second, claim.bound, claim.kind == "ratio", noise)


def is_unbracketed(record: Record) -> bool:
    """Whether the record's tuned number is the least or the largest tried: a better one may lie beyond."""
    if "tuned" not in record:
        return False
    try:
        tried = sorted(map(float, record["tuned"]["tried"]))
    except ValueError:  # words have no order
        return False
    return float(record["tuned"]["chosen"]) in (tried[0], tried[-1])


def verdicts(study: Study, records: Sequence[Record]) -> list[tuple[Claim, Verdict]]:
    """Every claim about the records of one group, less those of earlier settings, with its verdict."""
    found, records = [], [record for record in records if OLDER not in record]
    for claim in study.claims:
        if not (kept := kept_by(claim.only, records)):
            continue
        asked = {*claim.rows}
        tables = [(spec, spec.rows_of(kept)) for spec in study.tables]
        # The first table that has most of its rows.
        spec, rows = max(tables, key=lambda table: len(asked.intersection(map(row_name, table[1]))))
        values = {row_name(key): by_seed(claim.figure, group) for key, group in rows.items()}
        verdict = Verdict(NOT_RUN)
        if not asked or asked & values.keys():
            verdict = decide(
                claim,
                values,
                at_baseline(rows, study.baselines),
                spec.paper_values(rows),
                [row_name(key) for key, group in rows.items() if is_unbracketed(group[0])],
                fewest_examples(claim, rows),
            )
        theirs = {row_name(key): spec.paper_figure(key) for key in rows}
        named = claim.rows if claim.kind in PAIRS else claim.rows[:1]
        figures = ", ".join(figure for row in named if (figure := theirs.get(row)))
        found.append((claim, replace(verdict, paper=figures)))
    return found


def fewest_examples(claim: Claim, rows: Mapping[tuple[str, ...], Sequence[Record]]) -> int | None:
    """The size of the smallest test set of the claimed rows; None if the claim does not ask for it."""
    if claim.examples is None:
        return None
    groups = [group for key, group in rows.items() if row_name(key) in claim.rows]
    return min((int(value) for group in groups for value in numbers(claim.examples, group)), default=None)
