"""A statement of a paper as a test over records, and its verdict.

    - says: linear attention ends as low as softmax
      where: Figure 2
      test: {ratio: [loss_nats, elu, softmax], at_most: 1.1}

Tests: `ratio` and `difference` of a figure of two rows, `at_most` or `at_least` a number; `lowest` and
`highest`: the row that has the least or the most of a figure, over all others or those `among`; `rank`: the
correlation (Spearman) of a figure's medians with the paper's column, at least a number.

A row is named by the choices of the table's rows, joined by "/". `only` keeps a claim to these choices of an
axis, such as a preset.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipeline.errors import UserError
from pipeline.study.notation import (
    Expression,
    as_list,
    check_keys,
    check_known,
    number,
    parse_expression,
    read_only,
)
from pipeline.verdicts import (
    CONFIRMED,
    NOT_COMPARABLE,
    NOT_RUN,
    Bound,
    Values,
    Verdict,
    judge_extreme,
    judge_order,
    judge_pair,
)

PAIRS, EXTREMES, RANK = ("ratio", "difference"), ("lowest", "highest"), "rank"


@dataclass(frozen=True)
class Claim:
    """What a paper says, where, and the test: its `kind`, figure, rows, and bound if it has one.

    `only` has the choices of an axis that it is about; all if the axis is not in it.
    """

    says: str
    where: str
    kind: str
    figure: Expression
    rows: tuple[str, ...]
    bound: Bound | None
    only: dict[str, tuple[str, ...]] = field(default_factory=dict)


def read_claim(given: Any, axes: Mapping[str, Any], row_axes: Mapping[str, Any], where: str) -> Claim:
    """A claim of a YAML on tables whose rows are choices of `row_axes`; UserError for what is wrong in it."""
    check_keys(given, ("says", "where", "test", "only"), where, required=("says", "where", "test"))
    test = given["test"]
    check_keys(test, (*PAIRS, *EXTREMES, RANK, "at_most", "at_least", "among"), f"{where}: test")
    kinds = [kind for kind in (*PAIRS, *EXTREMES, RANK) if kind in test]
    if len(kinds) != 1:
        raise UserError(f"{where}: a test has one of {', '.join((*PAIRS, *EXTREMES, RANK))}")
    kind, words = kinds[0], as_list(test[kinds[0]])
    bounds = [key for key in ("at_most", "at_least") if key in test]
    if len(bounds) != (0 if kind in EXTREMES else 1):
        raise UserError(f"{where}: {kind} needs {'no bound' if kind in EXTREMES else 'at_most or at_least'}")
    rows = tuple(map(str, [*words[1:], *test.get("among", [])]))
    if len(words) != {RANK: 1, "lowest": 2, "highest": 2}.get(kind, 3):
        raise UserError(f"{where}: {kind} takes a figure and {'two rows' if kind in PAIRS else 'a row'}")
    check_rows(rows, row_axes, where)
    bound = Bound(number(test[bounds[0]], f"{where}: {bounds[0]}"), "at_most" in test) if bounds else None
    figure = parse_expression(words[0], where)
    only = given.get("only") or {}
    return Claim(
        str(given["says"]), str(given["where"]), kind, figure, rows, bound, read_only(only, axes, where)
    )


def check_rows(rows: Sequence[str], axes: Mapping[str, Any], where: str) -> None:
    """UserError for a row that names no choice, where the axes have all of their choices in the YAML."""
    if not all(axis.closed for axis in axes.values()):
        return
    known = [name for axis in axes.values() for name in axis.choices]
    for word in (word for row in rows for word in row.split("/")):
        check_known(word, known, f"{where}: there is no row {word}")


def decide(claim: Claim, values: Values, at_baseline: Sequence[str], paper: Mapping[str, float]) -> Verdict:
    """The verdict on a claim, from the claimed figure's `values`.

    `at_baseline` names the rows that have learned nothing, `paper` has the column of the paper by row.
    """
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
    return judge_pair(values[rows[0]], values[rows[1]], claim.bound, claim.kind == "ratio")
