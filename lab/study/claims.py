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
from statistics import mean
from typing import Any

from lab.errors import UserError
from lab.study.notation import (
    as_list,
    check_keys,
    check_known,
    number,
    parse_expression,
    read_only,
)
from lab.study.schema import Claim
from lab.verdicts import (
    BOUNDS,
    CONFIRMED,
    CONTRADICTED,
    NOT_COMPARABLE,
    NOT_RUN,
    UNDECIDED,
    Bound,
    Values,
    Verdict,
    judge_extreme,
    judge_order,
    judge_pair,
    test_set_noise,
    withheld,
)

PAIRS, EXTREMES, RANK = ("ratio", "difference"), ("lowest", "highest"), "rank"
REASONS = {"not_comparable": NOT_COMPARABLE, "undecided": UNDECIDED}


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
    check_rows(rows, row_axes, where)
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


def check_rows(rows: Sequence[str], axes: Mapping[str, Any], where: str) -> None:
    """UserError for a row that names no choice, where the axes have all of their choices in the YAML."""
    if not all(axis.closed for axis in axes.values()):
        return
    known = [name for axis in axes.values() for name in axis.choices]
    for word in (word for row in rows for word in row.split("/")):
        check_known(word, known, f"{where}: there is no row {word}")


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
