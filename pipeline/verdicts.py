"""Verdicts of studies and analyses: whether figures bear a statement out, by their ranges over seeds."""

import operator
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipeline.console import number_of

CONFIRMED, CONTRADICTED = "confirmed", "contradicted"
UNDECIDED, NOT_COMPARABLE, NOT_RUN = "undecided", "not comparable", "not run"
SEEDS = 3
"""Fewer decide nothing."""
SLACK = 1e3
"""A bound that holds by this factor says nothing of what it bounds."""

Values = Mapping[str, Sequence[float]]
"""Of a figure: by the name of a row, over its seeds."""


@dataclass(frozen=True)
class Verdict:
    """The outcome of a claim, and the effect in words."""

    outcome: str
    effect: str = ""

    def __str__(self) -> str:
        return f"{self.outcome}: {self.effect}" if self.effect else self.outcome


@dataclass(frozen=True)
class Bound:
    """What an effect is claimed to be `at_most`, or at least."""

    number: float
    at_most: bool


def judge_fact(holds: bool, effect: str = "") -> Verdict:
    """The verdict on a statement that is decided: it holds, or it does not."""
    return Verdict(CONFIRMED if holds else CONTRADICTED, effect)


def judge_bound(largest: float, bound: float) -> Verdict:
    """The verdict on an upper bound of a theorem, and by how much it is loose."""
    loose = largest > 0 and bound / largest > SLACK
    return judge_fact(largest <= bound, _loose(bound / largest) if loose else "")


def judge_pair(first: Sequence[float], second: Sequence[float], bound: Bound, ratio: bool) -> Verdict:
    """The verdict on the ratio or the difference of two rows: whether the ranges over seeds agree on it."""
    if ratio and min(second) <= 0 <= max(second):
        return Verdict(UNDECIDED, "the ratio to zero is not defined")
    apply = operator.truediv if ratio else operator.sub
    effect = apply(statistics.median(first), statistics.median(second))
    ends = [apply(x, y) for x in (min(first), max(first)) for y in (min(second), max(second))]
    if len({*first, *second}) == 1:
        return Verdict(UNDECIDED, f"a tie: every run has {first[0]:g}")
    least, most, seeds = min(ends), max(ends), min(len(first), len(second))
    number, sign = bound.number, "at most" if bound.at_most else "at least"
    spread = f"{least:.3g} to {most:.3g}, " if least < most else ""  # none with one seed
    words = f"{effect:.3g} ({spread}{sign} {number:g} claimed, {number_of(seeds, 'seeds')})"
    holds = (most <= number, least > number) if bound.at_most else (least >= number, most < number)
    if seeds < SEEDS or not any(holds):
        return Verdict(UNDECIDED, words)
    if holds[0] and bound.at_most and most > 0 and number / most > SLACK:
        words += f"; {_loose(number / most)}"
    return judge_fact(holds[0], words)


def judge_extreme(rows: Sequence[str], values: Values, lowest: bool) -> Verdict:
    """Whether the first of `rows` has the least or the most of all, by its range over the seeds.

    One better row contradicts it; it is confirmed only if every row has its seeds.
    """
    sign = 1 if lowest else -1
    own = [sign * value for value in values[rows[0]]]
    others = {row: [sign * value for value in values[row]] for row in rows[1:] if values.get(row)}
    few = [row for row in rows if len(values.get(row, ())) < SEEDS]
    better = [row for row in others if not {row, rows[0]} & {*few} and max(others[row]) < min(own)]
    best = min(better or others, key=lambda row: statistics.median(others[row]))
    seeds = min(len(values[row]) for row in (rows[0], best))
    median = statistics.median(values[rows[0]])
    words = (
        f"{median:.4g} beside {statistics.median(values[best]):.4g} of {best} ({number_of(seeds, 'seeds')})"
    )
    if better:
        return Verdict(CONTRADICTED, words)
    if not few and max(own) < min(map(min, others.values())):
        return Verdict(CONFIRMED, words)
    if seeds >= SEEDS and few:
        words += f"; fewer than {SEEDS} seeds of {', '.join(few)}"
    return Verdict(UNDECIDED, words)


def judge_order(values: Values, paper: Mapping[str, float], least: float) -> Verdict:
    """Whether the rows have the paper's order: Spearman's correlation of the medians is `least` or more."""
    found, common = rank_correlation(values, paper)
    if found is None:
        return Verdict(NOT_RUN, f"{len(common)} rows are in both, of 5 that an order needs")
    seeds = min(len(values[row]) for row in common)
    words = f"rank correlation {found:.2f} over {len(common)} rows ({number_of(seeds, 'seeds')})"
    if seeds < SEEDS:
        return Verdict(UNDECIDED, words)
    return judge_fact(found >= least, words)


def rank_correlation(values: Values, paper: Mapping[str, float]) -> tuple[float | None, list[str]]:
    """Spearman's correlation of the medians with the paper's figures, and the rows that have both.

    None for fewer than five rows or a column without an order.
    """
    common = [row for row in paper if values.get(row)]
    ours = [statistics.median(values[row]) for row in common]
    theirs = [paper[row] for row in common]
    if len(common) < 5 or len(set(ours)) == 1 or len(set(theirs)) == 1:
        return None, common
    return statistics.correlation(ranks(ours), ranks(theirs)), common


def ranks(values: Sequence[float]) -> list[float]:
    """The place of each value in ascending order; equal ones share the mean of theirs."""
    ordered = sorted(values)
    return [ordered.index(value) + (ordered.count(value) - 1) / 2 for value in values]


def _loose(factor: float) -> str:
    return f"the bound is loose by a factor of {factor:.0e}"
