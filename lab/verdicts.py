"""Verdicts of studies and figures: whether runs over several seeds bear a statement out.

The rules, which results/README.md states for readers:

1. Effects are paired by seed: two runs of one seed read the same data in the same order.
2. An effect has a 95 % interval (Student's t over the seeds; of ratios, over their logarithms). A claim is
   confirmed if the whole interval lies on its side of the bound, contradicted if the whole interval lies on
   the other side, undecided otherwise.
3. A score over few examples also has the noise of its test set; the wider of the two intervals counts.
4. A tie has a bound on either side, and its margin is ours.
5. A rank correlation is computed for each seed, and its range decides.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from scipy.special import stdtrit

from lab.console import number_of

CONFIRMED, CONTRADICTED = "confirmed", "contradicted"
UNDECIDED, NOT_COMPARABLE, NOT_RUN = "undecided", "not comparable", "not run"
SEEDS = 3
"""Fewer seeds decide nothing."""
ROWS = 5
"""Fewer rows have no order."""
ERRORS = 0.05
"""How often an interval may miss the effect."""
SLACK = 1e3
"""A bound that holds by this factor says nothing about the bounded value."""
ROUNDING = 1e-12
"""A difference below this share of the figures is rounding."""

Seeds = Mapping[int, float]
"""A figure by seed."""
Values = Mapping[str, Seeds]
"""A figure of several rows: by the name of the row, then by seed."""
Noise = Callable[[str, str], float]
"""Half the 95 % interval that the test set leaves to the difference of two rows, given by their names."""


@dataclass(frozen=True)
class Verdict:
    """The outcome of a claim, the effect in words, and the paper's own figures as printed."""

    outcome: str
    effect: str = ""
    paper: str = ""

    def __str__(self) -> str:
        return f"{self.outcome}: {self.effect}" if self.effect else self.outcome


@dataclass(frozen=True)
class Interval:
    """Where an effect lies, from `low` to `high`."""

    low: float
    high: float

    def widened(self, half: float) -> "Interval":
        """This interval, or the one of half-width `half` around its middle if it is wider."""
        middle = (self.low + self.high) / 2
        return self if self.high - middle >= half else Interval(middle - half, middle + half)


@dataclass(frozen=True)
class Bound:
    """The claimed bound of an effect: `at_most` or `at_least` a number, or `within` a margin of a tie.

    Within a margin m, a ratio lies between 1 - m and 1 + m, a difference between -m and m.
    """

    kind: str
    number: float

    def limits(self, ratio: bool) -> Interval:
        """The effects that bear the claim out."""
        if self.kind == "within":
            level = 1.0 if ratio else 0.0
            return Interval(level - self.number, level + self.number)
        return Interval(-math.inf, self.number) if self.kind == "at_most" else Interval(self.number, math.inf)

    def judge(self, found: Interval, ratio: bool) -> str:
        """The outcome for an effect that lies in the interval `found`."""
        limits = self.limits(ratio)
        if limits.low <= found.low and found.high <= limits.high:
            return CONFIRMED
        return CONTRADICTED if found.high < limits.low or found.low > limits.high else UNDECIDED

    def __str__(self) -> str:
        if self.kind == "within":
            return f"within {self.number:g}, our margin"
        return f"{self.kind.replace('_', ' ')} {self.number:g}"


BOUNDS = ("at_most", "at_least", "within")


def judge_fact(holds: bool, effect: str = "") -> Verdict:
    """The verdict on a statement that a computation decides."""
    return Verdict(CONFIRMED if holds else CONTRADICTED, effect)


def judge_bound(largest: float, bound: float) -> Verdict:
    """The verdict on an upper bound of a theorem; one that is far too loose says nothing."""
    if largest > 0 and bound / largest > SLACK:
        return Verdict(NOT_COMPARABLE, f"{_loose(bound / largest)} and says nothing")
    return judge_fact(largest <= bound)


def judge_pair(first: Seeds, second: Seeds, bound: Bound, ratio: bool, noise: float = 0.0) -> Verdict:
    """The verdict on the ratio or the difference of two rows, paired by seed.

    `noise` is half the interval that the test set leaves to a difference. Rows that are equal seed by seed
    bear out a claimed tie, and decide no other claim.
    """
    seeds = sorted(first.keys() & second.keys())
    if not seeds:
        return Verdict(UNDECIDED, "no seed is in both rows")
    ours, theirs = [first[seed] for seed in seeds], [second[seed] for seed in seeds]
    if ours == theirs and bound.kind != "within":
        same = f"every run has {ours[0]:g}" if len({*ours}) == 1 else "each seed has the same in both rows"
        return Verdict(UNDECIDED, f"a tie: {same}")
    if ratio and min(*ours, *theirs) <= 0:
        return Verdict(UNDECIDED, "the ratio is defined for positive figures only")
    effects = [math.log(x / y) if ratio else x - y for x, y in zip(ours, theirs, strict=True)]
    effect = statistics.fmean(effects)
    found = interval(effects).widened(noise)
    if ratio:
        effect, found = math.exp(effect), Interval(math.exp(found.low), math.exp(found.high))
    elif abs(effect) < ROUNDING * max(map(abs, ours)):
        effect = 0.0
    words = f"{'ratio' if ratio else 'difference'} {effect:.3g} ({_shown(found, len(seeds))}; {bound})"
    if len(seeds) < SEEDS:
        return Verdict(UNDECIDED, words)
    outcome = bound.judge(found, ratio)
    if outcome == CONFIRMED and bound.kind == "at_most" and 0 < found.high * SLACK < bound.number:
        words += f"; {_loose(bound.number / found.high)}"
    return Verdict(outcome, words)


def no_noise(first: str, second: str) -> float:
    """The noise of figures that do not depend on a small test set: none."""
    return 0.0


def judge_extreme(rows: Sequence[str], values: Values, lowest: bool, noise: Noise = no_noise) -> Verdict:
    """Whether the first of `rows` has the least or the most of all.

    It is confirmed if it is ahead of every other row, each difference paired by seed and with its own
    interval; one row that is ahead of it contradicts, with an interval for as many comparisons as there are
    rows. Every row needs its seeds to confirm.
    """
    sign, own = (1 if lowest else -1), values[rows[0]]
    gaps = {
        row: [sign * (own[seed] - values[row][seed]) for seed in sorted(own.keys() & values[row].keys())]
        for row in rows[1:]
        if values.get(row)
    }
    gaps = {row: found for row, found in gaps.items() if found}
    if not gaps:
        return Verdict(UNDECIDED, "no seed is in the other rows")

    def gap(row: str, errors: float) -> Interval:
        return interval(gaps[row], errors).widened(noise(rows[0], row))

    few = [row for row in rows[1:] if len(gaps.get(row, ())) < SEEDS]
    ahead = [row for row in gaps if row not in few and gap(row, ERRORS / len(gaps)).low > 0]
    best = max(ahead or gaps, key=lambda row: statistics.fmean(gaps[row]))
    theirs, seeds = values[best], len(gaps[best])
    words = f"{_mean(own):#.4g} beside {_mean(theirs):#.4g} of {best} ({number_of(seeds, 'seeds')})"
    if ahead:
        return Verdict(CONTRADICTED, words)
    if not few and all(gap(row, ERRORS).high < 0 for row in gaps):
        return Verdict(CONFIRMED, words)
    if seeds >= SEEDS and few:
        words += f"; fewer than {SEEDS} seeds of {', '.join(few)}"
    return Verdict(UNDECIDED, words)


def judge_order(values: Values, paper: Mapping[str, float], least: float) -> Verdict:
    """Whether the rows have the paper's order: Spearman's correlation is `least` or more with every seed."""
    found, common = rank_correlations(values, paper)
    if len(common) < ROWS:
        return Verdict(NOT_RUN, f"{len(common)} rows are in both, of {ROWS} that an order needs")
    if not found:
        return Verdict(NOT_RUN, "no seed has an order of all rows")
    counted = f"{len(common)} rows, {number_of(len(found), 'seeds')}"
    words = f"rank correlation {range_of(found)} ({counted}; at least {least:g}, our bound)"
    if len(found) < SEEDS or min(found) < least <= max(found):
        return Verdict(UNDECIDED, words)
    return judge_fact(min(found) >= least, words)


def withheld(verdict: Verdict, outcome: str, reason: str) -> Verdict:
    """The verdict as `outcome`, since for this `reason` the effect decides nothing.

    What is not comparable stays so: an undecided claim may still be decided by more seeds.
    """
    kept = NOT_COMPARABLE if verdict.outcome == NOT_COMPARABLE else outcome
    return replace(verdict, outcome=kept, effect="; ".join(filter(None, (verdict.effect, reason))))


def interval(values: Sequence[float], errors: float = ERRORS) -> Interval:
    """Student's two-sided interval of the mean of independent `values`, which misses it in `errors` of cases.

    Of one value, it has no width: it says nothing of the spread.
    """
    mean, count = statistics.fmean(values), len(values)
    if count == 1:
        return Interval(mean, mean)
    half = stdtrit(count - 1, 1 - errors / 2) * statistics.stdev(values) / math.sqrt(count)
    return Interval(mean - half, mean + half)


def test_set_noise(first: float, second: float, examples: int) -> float:
    """Half the 95 % interval of the difference of two accuracies in percent, by the size of their test set.

    Binomial and unpaired, hence wider than a test of the predictions themselves (McNemar) would have it; with
    a success and a failure added to each sample, so that 100 % has an interval, too (Agresti and Caffo 2000).
    """
    shares = [min(max(accuracy / 100, 0.0), 1.0) for accuracy in (first, second)]
    shares = [(share * examples + 1) / (examples + 2) for share in shares]
    return 196.0 * math.sqrt(sum(share * (1 - share) for share in shares) / (examples + 2))


def accuracy_noise(accuracy: float, examples: int) -> float:
    """Half the 95 % interval of an accuracy in percent, binomial, by the size of its test set."""
    share = accuracy / 100
    return 196.0 * math.sqrt(share * (1 - share) / examples)


def binomial_noise(values: Values, examples: int) -> Noise:
    """`test_set_noise` of the rows' mean accuracies."""
    return lambda first, second: test_set_noise(_mean(values[first]), _mean(values[second]), examples)


def rank_correlations(values: Values, paper: Mapping[str, float]) -> tuple[list[float], list[str]]:
    """Spearman's correlation with the paper's figures for each seed that all rows have, and those rows.

    Without correlations if there are fewer than five rows or a column has no order.
    """
    common = [row for row in paper if values.get(row)]
    theirs = [paper[row] for row in common]
    if len(common) < ROWS or len(set(theirs)) == 1:
        return [], common
    seeds = sorted(set.intersection(*(set(values[row]) for row in common)))
    columns = [[values[row][seed] for row in common] for seed in seeds]
    return [
        statistics.correlation(ranks(ours), ranks(theirs)) for ours in columns if len(set(ours)) > 1
    ], common


def ranks(values: Sequence[float]) -> list[float]:
    """The place of each value in ascending order; equal ones share the mean of theirs."""
    ordered = sorted(values)
    return [ordered.index(value) + (ordered.count(value) - 1) / 2 for value in values]


def range_of(values: Sequence[float]) -> str:
    """The least and the largest of some numbers."""
    ends = dict.fromkeys(f"{value:.2f}" for value in (min(values), max(values)))
    return " to ".join(ends)


def _mean(values: Seeds) -> float:
    return statistics.fmean(values.values())


def _shown(found: Interval, seeds: int) -> str:
    if seeds == 1:
        return "1 seed"
    return f"95 % interval {found.low:.3g} to {found.high:.3g}, {number_of(seeds, 'seeds')}"


def _loose(factor: float) -> str:
    return f"the bound is loose by a factor of {factor:.0e}"
