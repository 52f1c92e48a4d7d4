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

import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipeline.errors import UserError
from pipeline.study.expressions import Expression, parse_expression
from pipeline.study.keys import check_keys

CONFIRMED, CONTRADICTED = "confirmed", "contradicted"
UNDECIDED, NOT_COMPARABLE, NOT_RUN = "undecided", "not comparable", "not run"
SEEDS = 3
"""Fewer decide nothing."""
SLACK = 1e3
"""A bound that holds by this factor says nothing of what it bounds."""
PAIRS, EXTREMES, RANK = ("ratio", "difference"), ("lowest", "highest"), "rank"

Values = Mapping[str, Sequence[float]]
"""Of a figure: by the name of a row, over its seeds."""


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
    bound: float | None
    at_most: bool
    only: dict[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Verdict:
    """The outcome of a claim, and the effect in words."""

    outcome: str
    effect: str

    def __str__(self) -> str:
        return f"{self.outcome}: {self.effect}" if self.effect else self.outcome


def read_claim(given: Any, axes: Collection[str], where: str) -> Claim:
    """A claim of a YAML; UserError for what is wrong in it."""
    check_keys(given, ("says", "where", "test", "only"), where)
    for key in ("says", "where", "test"):
        if key not in given:
            raise UserError(f"{where}: {key} is missing")
    test = given["test"]
    check_keys(test, (*PAIRS, *EXTREMES, RANK, "at_most", "at_least", "among"), f"{where}: test")
    kinds = [kind for kind in (*PAIRS, *EXTREMES, RANK) if kind in test]
    if len(kinds) != 1:
        raise UserError(f"{where}: a test has one of {', '.join((*PAIRS, *EXTREMES, RANK))}")
    kind, words = kinds[0], test[kinds[0]]
    words = words if isinstance(words, list) else [words]
    bounds = [key for key in ("at_most", "at_least") if key in test]
    if len(bounds) != (0 if kind in EXTREMES else 1):
        raise UserError(f"{where}: {kind} needs {'no bound' if kind in EXTREMES else 'at_most or at_least'}")
    rows = tuple(map(str, [*words[1:], *test.get("among", [])]))
    if len(words) != {RANK: 1, "lowest": 2, "highest": 2}.get(kind, 3):
        raise UserError(f"{where}: {kind} takes a figure and {'two rows' if kind in PAIRS else 'a row'}")
    bound = float(test[bounds[0]]) if bounds else None
    figure = parse_expression(words[0], where)
    only = given.get("only") or {}
    check_keys(only, axes, f"{where}: only")
    names = {axis: tuple(map(str, words)) for axis, words in only.items()}
    return Claim(str(given["says"]), str(given["where"]), kind, figure, rows, bound, "at_most" in test, names)


def decide(claim: Claim, values: Values, at_baseline: Sequence[str], paper: Mapping[str, float]) -> Verdict:
    """The verdict on a claim, from the claimed figure's `values`.

    `at_baseline` names the rows that have learned nothing, `paper` has the column of the paper by row.
    """
    rows = claim.rows or tuple(values)
    if claim.kind in EXTREMES and len(claim.rows) == 1:
        rows = (*claim.rows, *(row for row in values if row != claim.rows[0]))
    missing = [row for row in rows if not values.get(row)]
    if missing and (claim.kind in PAIRS or missing[0] == rows[0]):
        return Verdict(NOT_RUN, f"no figure of {', '.join(missing)}")
    rows = tuple(row for row in rows if values.get(row))
    if claim.kind == RANK:
        return decide_rank(claim, values, paper)
    if len(rows) < 2:
        return Verdict(NOT_RUN, "there is no other row")
    standing = [row for row in rows if row in at_baseline]
    if standing and (claim.kind in PAIRS or rows[0] in standing):
        return Verdict(NOT_COMPARABLE, f"{', '.join(standing)} at the baseline")
    if claim.kind in EXTREMES:
        return decide_extreme(claim, rows, values)
    return decide_pair(claim, values[rows[0]], values[rows[1]])


def decide_pair(claim: Claim, first: Sequence[float], second: Sequence[float]) -> Verdict:
    """The verdict on the ratio or the difference of two rows: whether the ranges over seeds agree on it."""
    assert claim.bound is not None
    ratio = claim.kind == "ratio"
    if ratio and min(map(abs, second)) == 0:
        return Verdict(UNDECIDED, "the ratio to zero is not defined")
    middle_1, middle_2 = statistics.median(first), statistics.median(second)
    low, high = min(first), max(first)
    below, above = min(second), max(second)
    if ratio:
        effect, least, most = middle_1 / middle_2, low / above, high / below
    else:
        effect, least, most = middle_1 - middle_2, low - above, high - below
    return bounded(claim, effect, least, most, min(len(first), len(second)), {*first} | {*second})


def bounded(
    claim: Claim, effect: float, least: float, most: float, seeds: int, values: set[float]
) -> Verdict:
    """The verdict on an effect between `least` and `most` over the seeds, against the claim's bound."""
    assert claim.bound is not None
    sign = "at most" if claim.at_most else "at least"
    words = f"{effect:.3g} ({least:.3g} to {most:.3g}, {sign} {claim.bound:g} claimed, {count_of(seeds)})"
    if len(values) == 1:
        return Verdict(UNDECIDED, f"a tie: every run has {next(iter(values)):g}")
    holds = (
        (most <= claim.bound, least > claim.bound)
        if claim.at_most
        else (least >= claim.bound, most < claim.bound)
    )
    if seeds < SEEDS or not any(holds):
        return Verdict(UNDECIDED, words)
    if holds[0] and claim.at_most and most > 0 and claim.bound / most > SLACK:
        return Verdict(CONFIRMED, f"{words}; the bound is loose by a factor of {claim.bound / most:.0e}")
    return Verdict(CONFIRMED if holds[0] else CONTRADICTED, words)


def decide_extreme(claim: Claim, rows: Sequence[str], values: Values) -> Verdict:
    """Whether the first of `rows` has the least or the most of all, by its range over the seeds."""
    sign = 1 if claim.kind == "lowest" else -1
    own = [sign * value for value in values[rows[0]]]
    others = {row: [sign * value for value in values[row]] for row in rows[1:]}
    best = min(others, key=lambda row: statistics.median(others[row]))
    seeds = min(len(values[row]) for row in (rows[0], best))
    median = statistics.median(values[rows[0]])
    words = f"{median:.4g} beside {statistics.median(values[best]):.4g} of {best} ({count_of(seeds)})"
    if seeds >= SEEDS and max(own) < min(map(min, others.values())):
        return Verdict(CONFIRMED, words)
    if seeds >= SEEDS and min(own) > max(others[best]):
        return Verdict(CONTRADICTED, words)
    return Verdict(UNDECIDED, words)


def decide_rank(claim: Claim, values: Values, paper: Mapping[str, float]) -> Verdict:
    """Whether the order of the rows is the paper's."""
    assert claim.bound is not None
    common = [row for row in paper if values.get(row)]
    ours = [statistics.median(values[row]) for row in common]
    found = rank_correlation(ours, [paper[row] for row in common])
    if found is None:
        return Verdict(NOT_RUN, f"{len(common)} rows are in both, of 5 that an order needs")
    seeds = min(len(values[row]) for row in common)
    words = f"rank correlation {found:.2f} over {len(common)} rows ({count_of(seeds)})"
    if seeds < SEEDS:
        return Verdict(UNDECIDED, words)
    return Verdict(CONFIRMED if found >= claim.bound else CONTRADICTED, words)


def rank_correlation(ours: Sequence[float], theirs: Sequence[float]) -> float | None:
    """Spearman's correlation, None for fewer than five pairs or a column without an order."""
    if len(ours) < 5 or len(set(ours)) == 1 or len(set(theirs)) == 1:
        return None
    return statistics.correlation(ranks(ours), ranks(theirs))


def ranks(values: Sequence[float]) -> list[float]:
    """The place of each value in ascending order; equal ones share the mean of theirs."""
    ordered = sorted(values)
    return [ordered.index(value) + (ordered.count(value) - 1) / 2 for value in values]


def count_of(seeds: int) -> str:
    """How many seeds, in words."""
    return "1 seed" if seeds == 1 else f"{seeds} seeds"
