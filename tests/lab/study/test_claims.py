"""The verdict on a claim: confirmed, contradicted, or undecided."""

import math
import random
from types import SimpleNamespace

import pytest

from lab.errors import UserError
from lab.resampling import Predictions, half_interval
from lab.study.declared_tables import read_claim
from lab.study.schema import Axis, Baseline, Best, parse_expression
from lab.study.table import (
    AT_BASELINE,
    EDGE,
    NO_PREDICTIONS,
    WITHIN_NOISE,
    at_baseline,
    decide,
    doubts_of,
    is_unbracketed,
    noise_of,
    note_of_star,
    predictions_of,
    share_a_start,
)
from lab.verdicts import (
    CONFIRMED,
    CONTRADICTED,
    NOT_COMPARABLE,
    NOT_RUN,
    UNDECIDED,
    Bound,
    Interval,
    accuracy_noise,
    binomial_noise,
    judge_bound,
    judge_extreme,
    judge_pair,
    rank_correlations,
)
from lab.verdicts import test_set_noise as noise

OPEN = {"method": Axis("method", {}, placeholder=False, closed=False)}


def by_seed(values):
    """Rows of lists as rows of figures by seed."""
    return {row: dict(enumerate(found, start=1)) for row, found in values.items()}


def verdict(test, values, at_baseline=(), paper=(), reason=None, **more):
    given = {"says": "it is so", "where": "Table 1", "test": test, **(reason or {})}
    return decide(read_claim(given, {}, [OPEN], "claims"), by_seed(values), at_baseline, dict(paper), **more)


RATIO = {"ratio": ["loss", "a", "b"], "at_most": 1.1}
TIE = {"ratio": ["loss", "a", "b"], "within": 0.02}


@pytest.mark.parametrize(
    ("test", "a", "b", "outcome"),
    [
        # log ratios 0, ln 1.01 and ln(1.02/1.01): mean 0.00662, deviation 0.00573, half-width 0.0142
        (RATIO, [1.0, 1.01, 1.02], [1.0, 1.0, 1.01], CONFIRMED),
        (RATIO, [2.0, 2.1, 2.2], [1.0, 1.0, 1.1], CONTRADICTED),
        (RATIO, [1.0, 1.1, 1.3], [1.0, 1.0, 1.1], UNDECIDED),
        (RATIO, [1.0, 2.0, 4.0], [1.01, 2.02, 4.04], CONFIRMED),  # seeds differ more than rows: paired
        (RATIO, [1.0, 1.0], [1.0, 1.1], UNDECIDED),  # two seeds
        (RATIO, [1.0, 1.0], [2.0, 2.0], UNDECIDED),  # which have no spread here
        (RATIO, [1.0, 1.0, 1.0], [1.0, 1.0, 1.0], UNDECIDED),  # a tie
        (RATIO, [], [1.0, 1.0, 1.0], NOT_RUN),
        (RATIO, [1.0, 1.0, 1.0], [0.0, 1.0, 1.0], UNDECIDED),  # no ratio to zero
        (RATIO, [-1.2, -1.3, -1.4], [-1.0, -1.0, -0.8], UNDECIDED),  # nor of negative figures
        (TIE, [1.0, 1.01, 1.0], [1.0, 1.01, 1.001], CONFIRMED),
        (TIE, [1.0, 1.0, 1.0], [1.0, 1.0, 1.0], CONFIRMED),
        (TIE, [0.8, 0.81, 0.8], [1.0, 1.01, 1.0], CONTRADICTED),  # better is not a tie, either
        (TIE, [1.2, 1.21, 1.2], [1.0, 1.01, 1.0], CONTRADICTED),
        (TIE, [1.01, 1.03, 1.0], [1.0, 1.01, 1.0], UNDECIDED),
    ],
)
def test_a_ratio(test, a, b, outcome):
    assert verdict(test, {"a": a, "b": b}).outcome == outcome


def test_the_interval_of_an_effect_by_hand():
    # differences 1, 2, 3: mean 2, deviation 1, Student's factor of two degrees of freedom 4.3027 / sqrt(3)
    found = judge_pair({1: 2.0, 2: 4.0, 3: 6.0}, {1: 1.0, 2: 2.0, 3: 3.0}, Bound("at_least", -1), ratio=False)
    assert found.effect == "difference 2 (95 % interval -0.484 to 4.48, 3 seeds; at least -1)"
    assert found.outcome == CONFIRMED


@pytest.mark.parametrize(
    ("bound", "low", "high", "outcome"),
    [
        (Bound("at_most", 2), 1, 2, CONFIRMED),
        (Bound("at_most", 2), 2, 3, UNDECIDED),
        (Bound("at_most", 2), 2.5, 3, CONTRADICTED),
        (Bound("at_least", 2), 2, 3, CONFIRMED),
        (Bound("at_least", 2), 1, 2, UNDECIDED),
        (Bound("at_least", 2), 1, 1.5, CONTRADICTED),
        (Bound("within", 0.5), 0.5, 1.5, CONFIRMED),
        (Bound("within", 0.5), 0.25, 0.5, UNDECIDED),
        (Bound("within", 0.5), 1.5, 2, UNDECIDED),
        (Bound("within", 0.5), 0, 0.25, CONTRADICTED),
        (Bound("within", 0.5), 1.75, 2, CONTRADICTED),
    ],
)
def test_an_interval_that_touches_its_bound(bound, low, high, outcome):
    assert bound.judge(Interval(low, high), ratio=True) == outcome


def test_rows_that_are_level_decide_nothing():
    rows = {"a": dict.fromkeys(range(3), 1.0), "b": dict.fromkeys(range(3), 1.0)}
    assert judge_extreme("ab", rows, lowest=True).outcome == UNDECIDED


def test_an_extreme_is_told_by_means_and_paired_seeds():
    rows = {"a": {1: 1.0, 2: 2.0, 3: 9.0}, "b": {1: 3.0, 2: 4.0, 3: 11.0, 4: 6.0}}
    found = judge_extreme("ab", rows, lowest=True)
    assert (found.outcome, found.effect) == (CONFIRMED, "4.000 beside 6.000 of b (3 seeds)")


def test_a_small_test_set_tells_no_extreme():
    rows = {"a": {1: 80.0, 2: 80.1, 3: 79.9}, "b": {1: 79.0, 2: 79.0, 3: 79.0}}
    noises = {examples: binomial_noise(rows, examples) for examples in (250, 25_000)}
    found = {examples: judge_extreme("ab", rows, False, noise).outcome for examples, noise in noises.items()}
    assert found == {250: UNDECIDED, 25_000: CONFIRMED}
    assert judge_extreme("ab", rows, False).outcome == CONFIRMED
    assert judge_extreme("ba", rows, False, noises[250]).outcome == UNDECIDED
    assert judge_extreme("ba", rows, False, noises[25_000]).outcome == CONTRADICTED


@pytest.mark.parametrize(("kind", "number"), [("at_most", 0), ("at_least", 0)])
def test_rows_equal_seed_by_seed_have_no_direction(kind, number):
    row = {1: 0.9, 2: 0.8, 3: 0.7}
    found = judge_pair(row, dict(row), Bound(kind, number), ratio=False)
    assert (found.outcome, found.effect) == (UNDECIDED, "a tie: each seed has the same in both rows")
    assert judge_pair(row, dict(row), Bound("within", 0.1), ratio=False).outcome == CONFIRMED


def test_only_common_seeds_are_paired():
    found = judge_pair({1: 1.0, 2: 9.0}, {2: 8.0, 3: 7.0}, Bound("at_most", 0), ratio=False)
    assert found.effect == "difference 1 (1 seed; at most 0)"


@pytest.mark.parametrize(("examples", "outcome"), [(250, UNDECIDED), (25000, CONFIRMED)])
def test_a_small_test_set_widens_the_interval(examples, outcome):
    # 80 and 79 %: 196 sqrt((0.1614 + 0.1672) / (n + 2)) is 7.08 points for 250 examples, 0.71 for 25,000
    values = {"a": [80.0, 80.1, 79.9], "b": [79.0, 79.0, 79.0]}
    test = {"difference": ["accuracy", "a", "b"], "at_least": 0, "examples": "examples"}
    assert verdict(test, values, noise=binomial_noise(by_seed(values), examples)).outcome == outcome
    assert noise(80, 79, 250) == pytest.approx(7.0782, abs=1e-4)
    assert noise(100, 100, 256) == pytest.approx(1.0723, abs=1e-4)  # all right: 257 of 258, twice


@pytest.mark.parametrize("seeds", [3, 5])
@pytest.mark.parametrize("kind", ["at_most", "within", "lowest"])
def test_no_effect_rarely_gets_a_verdict(seeds, kind):
    """At most 5 % of 2,000 studies, plus three binomial standard errors of 0.5 %."""
    draw, false = random.Random(seeds), 0
    for _ in range(2000):
        level = {seed: draw.gauss(0, 1) for seed in range(seeds)}  # shared by the rows of a seed
        rows = {
            row: {seed: math.exp(0.1 * (level[seed] + draw.gauss(0, 1))) for seed in level} for row in "abcd"
        }
        if kind == "lowest":
            found = judge_extreme("abcd", rows, lowest=True)
        else:
            number = {"at_most": 1.0, "within": 0.0}[kind]
            found = judge_pair(rows["a"], rows["b"], Bound(kind, number), ratio=True)
        false += found.outcome in (CONFIRMED, CONTRADICTED)
    assert false <= 0.065 * 2000


def test_a_reason_withholds_the_verdict():
    values = {"a": [1.0, 1.01, 1.02], "b": [1.0, 1.0, 1.01]}
    reason = {"not_comparable": "one rate for all"}
    found = verdict(RATIO, values, reason=reason)
    assert found.outcome == NOT_COMPARABLE and found.effect.endswith("; one rate for all")
    found = verdict(RATIO, values, at_baseline=["b"], reason=reason)
    assert (found.outcome, found.effect) == (NOT_COMPARABLE, "b at the baseline; one rate for all")
    found = verdict(RATIO, {**values, "b": []}, reason=reason)
    assert (found.outcome, found.effect) == (NOT_RUN, "no figure of b")


def test_a_row_tuned_to_the_end_of_its_list_decides_nothing():
    values = {"a": [1.0, 1.01, 1.02], "b": [1.0, 1.0, 1.01], "c": [3.0, 3.1, 3.2]}
    assert verdict(RATIO, values, doubts={EDGE: ["c"]}).outcome == CONFIRMED
    found = verdict(RATIO, values, doubts={EDGE: ["b"]})
    assert found.outcome == UNDECIDED and found.effect.endswith("is the least or the largest (b)")
    highest = {"highest": ["loss", "c"]}
    assert verdict(highest, values).outcome == CONFIRMED
    assert verdict(highest, values, doubts={EDGE: ["a"]}).outcome == UNDECIDED
    record = {"tuned": {"chosen": "0.004", "tried": {"0.004": 1.0, "0.002": 2.0, "0.016": None}}}
    assert not is_unbracketed(record)
    del record["tuned"]["tried"]["0.016"]
    assert is_unbracketed(record)
    assert not is_unbracketed({"tuned": {"chosen": "relu", "tried": {"relu": 1.0, "elu": 2.0}}})


def test_a_best_choice_at_the_end_of_its_list_is_not_bracketed():
    best = Best("lr", parse_expression("score", "best"), "highest")
    tried = [{"cell": {"lr": lr}, "best": ["0.001", "0.0003", "0.003"]} for lr in ("0.001", "0.003")]
    assert [is_unbracketed(record, best) for record in tried] == [False, True]


def test_seeds_that_share_a_checkpoint_repeat_one_training():
    starts = [{"start": {"path": "a", "fingerprint": mark, "seed": 1}} for mark in "abb"]
    assert not share_a_start(starts[:2]) and share_a_start(starts)
    assert not share_a_start([{}]) and share_a_start([{}, {}])  # records from before `start` was kept


def scored(seed, right, metric="accuracy"):
    """A record of seed `seed` with the predictions of ten examples, of which the first `right` are right."""
    predictions = {"predicted": "1" * right + "0" * (10 - right), "true": "1" * 10}
    return {"cell": {"seed": seed}, "found": {"metric": metric, "predictions": predictions}}


def test_a_bootstrap_takes_the_predictions_of_the_common_seeds():
    ours, theirs = [scored(1, 6), scored(2, 8)], [scored(2, 7), scored(1, 6), scored(3, 0)]
    claim = SimpleNamespace(bootstrap=True)
    found = noise_of(claim, {"a": ours, "b": theirs, "c": [scored(1, 6)]}, {})
    first, second = (
        {one["cell"]["seed"]: Predictions(**one["found"]["predictions"]) for one in row}
        for row in (ours, theirs)
    )
    assert found("a", "b") == half_interval("accuracy", first, second) > 0
    assert found("a", "c") == half_interval("accuracy", {1: first[1]}, {1: first[1]}) == 0


def test_a_row_that_lacks_predictions_has_no_bootstrap_and_decides_nothing():
    whole, part = [scored(1, 6), scored(2, 8)], [scored(1, 5), scored(2, 5)]
    part[1]["found"]["predictions"] = None
    assert set(predictions_of(whole)) == {1, 2} and predictions_of(part) == {}
    study, claim = SimpleNamespace(start="", best=None), SimpleNamespace(bootstrap=True)
    assert doubts_of(study, claim, {"a": whole, "b": part}) == {NO_PREDICTIONS: ["b"], EDGE: []}
    assert noise_of(claim, {"a": whole, "b": part}, {})("a", "b") == 0


def test_a_tie_by_quantisation_is_called_one():
    assert "tie" in verdict(RATIO, {"a": [0.5] * 3, "b": [0.5] * 3}).effect


def test_differences_that_cancel_are_zero_not_rounding():
    found = judge_pair(
        {1: 90.1, 2: 90.3, 3: 90.2}, {1: 90.3, 2: 90.2, 3: 90.1}, Bound("at_least", 1), ratio=False
    )
    assert found.effect.startswith("difference 0 (95 % interval")


def test_what_counts_as_rounding_follows_the_size_of_the_figures():
    large = {1: 90.1e9, 2: 90.3e9, 3: 90.2e9}, {1: 90.3e9, 2: 90.2e9, 3: 90.1e9}
    small = {1: 3e-15, 2: 4e-15, 3: 3e-15}, {1: 2e-15, 2: 3e-15, 3: 2e-15}
    found = [judge_pair(*rows, Bound("at_least", 1), ratio=False).effect for rows in (large, small)]
    assert found[0].startswith("difference 0 (") and found[1].startswith("difference 1e-15 (")


@pytest.mark.parametrize(
    ("bound", "words"),
    [(1e6, "at most 1e+06); the bound is loose by a factor of 2e+11"), (4e-3, "at most 0.004)")],
)
def test_a_loose_bound_is_called_one(bound, words):
    # the interval ends at 4.484e-6, of which a thousandfold is 4.484e-3
    test = {"difference": ["loss", "a", "b"], "at_most": bound}
    found = verdict(test, {"a": [2e-6, 3e-6, 4e-6], "b": [1e-6] * 3})
    assert found.outcome == CONFIRMED and found.effect.endswith(words)


def test_a_method_at_the_baseline_decides_nothing():
    values = {"a": [1.0, 1.0, 1.1], "b": [3.0, 3.0, 3.1], "c": [2.0, 2.1, 2.2]}
    assert verdict(RATIO, values, at_baseline=["b"]).outcome == NOT_COMPARABLE
    assert verdict({"lowest": ["loss", "a"]}, values).outcome == CONFIRMED
    assert verdict({"lowest": ["loss", "a"]}, values, at_baseline=["b"]).outcome == NOT_COMPARABLE
    assert verdict({"lowest": ["loss", "a"]}, values, at_baseline=["b", "c"]).outcome == NOT_COMPARABLE
    assert verdict({"lowest": ["loss", "c"]}, values, at_baseline=["b"]).outcome == CONTRADICTED
    values["c"] = []
    assert verdict({"lowest": ["loss", "a"]}, values, at_baseline=["b"]).outcome == NOT_COMPARABLE


def test_a_difference_and_its_direction():
    values = {"a": [1.0, 1.1, 1.2], "b": [3.0, 3.1, 3.2]}
    assert verdict({"difference": ["loss", "a", "b"], "at_most": 0}, values).outcome == CONFIRMED
    assert verdict({"difference": ["loss", "a", "b"], "at_least": 0}, values).outcome == CONTRADICTED
    assert verdict({"difference": ["loss", "a", "b"], "within": 1}, values).outcome == CONTRADICTED


def test_the_lowest_and_the_highest():
    values = {"a": [1.0, 1.1, 1.2], "b": [3.0, 3.1, 3.2], "c": [2.0, 2.1, 2.2]}
    assert verdict({"lowest": ["loss", "a"]}, values).outcome == CONFIRMED
    assert verdict({"highest": ["loss", "c"]}, values).outcome == CONTRADICTED
    assert verdict({"highest": ["loss", "c"], "among": ["a"]}, values).outcome == CONFIRMED
    for row, effect in (
        ("a", "1.100 beside 2.100 of c (3 seeds)"),
        ("b", "3.100 beside 1.100 of a (3 seeds)"),
    ):
        assert verdict({"lowest": ["loss", row]}, values).effect == effect  # the nearest, or the best
    assert verdict({"lowest": ["loss", "a"]}, {"a": [1.0] * 3}).outcome == NOT_RUN


@pytest.mark.parametrize("others", [{}, {"c": []}, {"c": [2.0]}], ids=["absent", "empty", "one seed"])
def test_the_lowest_of_all_needs_all_with_their_seeds(others):
    test = {"lowest": ["loss", "a"], "among": ["b", "c"]}
    found = verdict(test, {"a": [1.0, 1.1, 1.2], "b": [3.0] * 3, **others})
    assert found.outcome == UNDECIDED and found.effect.endswith(("1 seed)", "; fewer than 3 seeds of c"))
    assert verdict(test, {"a": [4.0] * 3, "b": [3.0] * 3, **others}).outcome == CONTRADICTED


def test_the_order_of_the_paper():
    paper = {name: number for number, name in enumerate("abcde")}
    same = {name: [float(number)] * 3 for name, number in paper.items()}
    turned = {name: [-value[0]] * 3 for name, value in same.items()}
    test = {"rank": "loss", "at_least": 0.8}
    assert verdict(test, same, paper=paper).outcome == CONFIRMED
    assert verdict(test, turned, paper=paper).outcome == CONTRADICTED
    assert verdict({"rank": "loss", "at_least": 1}, same, paper=paper).outcome == CONFIRMED
    assert verdict(test, {"z": [], **same}, paper=paper).outcome == CONFIRMED
    assert (
        verdict(test, {name: values[:1] for name, values in same.items()}, paper=paper).outcome == UNDECIDED
    )
    assert verdict(test, same, at_baseline=["a"], paper=paper).outcome == NOT_RUN


def test_an_order_that_changes_with_the_seed_is_undecided():
    paper = dict(zip("abcde", range(5), strict=True))
    values = {row: [place, place, place] for row, place in paper.items()}
    values["a"], values["e"] = [0, 0, 4], [4, 4, 0]
    found = verdict({"rank": "loss", "at_least": 0.8}, values, paper=paper)
    assert found.outcome == UNDECIDED and "-0.60 to 1.00" in found.effect
    assert verdict({"rank": "loss", "at_least": 1}, values, paper=paper).outcome == UNDECIDED  # its largest


def test_rank_correlation_shares_the_places_of_ties():
    for ours, theirs, expected in (
        ([1, 2, 2, 4, 5], [1, 2, 2, 4, 5], [pytest.approx(1)]),
        ([1, 2, 2, 4, 5], [1, 2, 3, 4, 5], [pytest.approx(9.5 / math.sqrt(95))]),
        ([1, 2, 3, 4, 5], [5, 4, 3, 2, 1], [pytest.approx(-1)]),
        ([1, 1, 1, 1, 1], [1, 2, 3, 4, 5], []),
        ([1, 2, 3, 4, 5], [1, 1, 1, 1, 1], []),
    ):
        values = {row: {1: value} for row, value in zip("abcde", ours, strict=True)}
        paper = dict(zip("abcde", theirs, strict=True))
        assert rank_correlations(values, paper) == (expected, list("abcde"))
    four = {row: {1: place} for place, row in enumerate("abcd")}
    assert rank_correlations(four, dict(zip("abcde", range(5), strict=True))) == ([], list("abcd"))


@pytest.mark.parametrize(
    ("margin", "figures", "stands"),
    [
        (-0.25, [2.0, 2.0, 1.0], True),  # by their median
        (-0.25, [1.75], True),  # the margin's end
        (-0.25, [1.625], False),
        (-0.25, [8.0], True),  # worse than guessing
        (0.25, [2.25], True),
        (0.25, [2.375], False),
        (0.25, [0.5], True),
    ],
)
def test_what_stands_at_a_baseline(margin, figures, stands):
    records = [{"found": {"loss": {"test": figure}}} for figure in figures]
    baseline = Baseline("guessing", {"loss.test": 2.0}, {"loss.test": margin})
    assert at_baseline({("a", "b"): records}, [baseline]) == (["a/b"] if stands else [])


@pytest.mark.parametrize(("examples", "stands"), [([400, 99], True), ([400, 400], False)])
def test_an_accuracy_must_leave_the_noise_of_the_smallest_test_set(examples, stands):
    """At 50 % of 99 examples it is 9.85 points, of 400 4.9."""
    records = [{"found": {"accuracy": 59.8, "n": number}} for number in examples]
    baseline = Baseline("guessing", {"accuracy": 50.0}, {"accuracy": 2.0}, parse_expression("n", "test"))
    assert at_baseline({("a",): records}, [baseline]) == (["a"] if stands else [])


def test_the_noise_of_an_accuracy_by_hand():
    """1.96 standard errors: of 20 % of 100 examples 4 points, which are the same of 80 %."""
    assert accuracy_noise(20.0, 100) == accuracy_noise(80.0, 100) == pytest.approx(1.96 * 4.0)
    assert accuracy_noise(100.0, 100) == accuracy_noise(0.0, 100) == 0


@pytest.mark.parametrize(
    ("level", "examples", "note"),
    [(50.0, "n", WITHIN_NOISE), (0.0, "n", AT_BASELINE), (50.0, "", AT_BASELINE)],
)
def test_a_star_says_whether_the_noise_of_the_test_set_counts(level, examples, note):
    """Of a score of 0, such as a correlation, no share of right answers has noise."""
    rows = {("a",): [{"found": {"score": level, "n": 99}}]}
    size = parse_expression(examples, "test") if examples else None
    assert note_of_star(rows, [Baseline("guessing", {"score": level}, {"score": 2.0}, size)]) == note


@pytest.mark.parametrize(
    ("test", "named"),
    [
        ({"ratios": ["loss", "a", "b"], "at_most": 1}, "ratios"),
        ({"ratio": ["loss", "a"], "at_most": 1}, "ratio"),
        ({"ratio": ["loss", "a", "b"]}, "at_most"),
        ({"lowest": ["loss", "a"], "at_most": 1}, "lowest"),
        ({"rank": "loss", "at_most": 1}, "rank needs at_least"),
        ({"ratio": ["loss", "a", "b"], "at_most": 1, "examples": "examples"}, "examples"),
        ({"ratio": ["__import__('os')", "a", "b"], "at_most": 1}, "__import__"),
    ],
)
def test_bad_claims(test, named):
    with pytest.raises(UserError, match=named.replace("(", r"\(").replace(")", r"\)")):
        verdict(test, {})


@pytest.mark.parametrize(
    ("largest", "bound", "outcome", "words"),
    [
        (1.0, 2.0, CONFIRMED, ""),
        (2.0, 2.0, CONFIRMED, ""),
        (3.0, 2.0, CONTRADICTED, ""),
        (1.0, 999.0, CONFIRMED, ""),
        (1e-6, 1e6, NOT_COMPARABLE, "the bound is loose by a factor of 1e+12 and says nothing"),
    ],
)
def test_a_bound_of_a_theorem(largest, bound, outcome, words):
    found = judge_bound(largest, bound)
    assert (found.outcome, found.effect) == (outcome, words)
