"""The verdict on a claim: what confirms it, what contradicts it, and what decides nothing."""

import pytest

from pipeline.errors import UserError
from pipeline.study.claims import decide, read_claim
from pipeline.study.declaration import Axis
from pipeline.verdicts import (
    CONFIRMED,
    CONTRADICTED,
    NOT_COMPARABLE,
    NOT_RUN,
    UNDECIDED,
    judge_bound,
    rank_correlation,
)

OPEN = {"method": Axis("method", {}, placeholder=False, closed=False)}


def verdict(test, values, at_baseline=(), paper=()):
    claim = read_claim({"says": "it is so", "where": "Table 1", "test": test}, {}, OPEN, "claims")
    return decide(claim, values, at_baseline, dict(paper))


RATIO = {"ratio": ["loss", "a", "b"], "at_most": 1.1}


@pytest.mark.parametrize(
    ("a", "b", "outcome"),
    [
        ([1.0, 1.01, 1.02], [1.0, 1.0, 1.01], CONFIRMED),
        ([2.0, 2.1, 2.2], [1.0, 1.0, 1.1], CONTRADICTED),
        ([1.0, 1.1, 1.3], [1.0, 1.0, 1.1], UNDECIDED),  # the ranges lie on both sides
        ([1.0, 1.0], [1.0, 1.1], UNDECIDED),  # two seeds
        ([1.0, 1.0, 1.0], [1.0, 1.0, 1.0], UNDECIDED),  # a tie
        ([], [1.0, 1.0, 1.0], NOT_RUN),
        ([1.0, 1.0, 1.0], [0.0, 1.0, 1.0], UNDECIDED),  # the ratio is not defined
        ([1.0, 1.0, 1.0], [-1.0, 1.0, 2.0], UNDECIDED),  # nor is it here
        ([-1.0, -1.1, -1.2], [-1.0, -1.0, -0.8], UNDECIDED),  # from 1 to 1.5
        ([-1.2, -1.3, -1.4], [-1.0, -1.0, -0.8], CONTRADICTED),
    ],
)
def test_a_ratio(a, b, outcome):
    assert verdict(RATIO, {"a": a, "b": b}).outcome == outcome


def test_a_tie_by_quantisation_is_called_one():
    assert "tie" in verdict(RATIO, {"a": [0.5] * 3, "b": [0.5] * 3}).effect


def test_a_loose_bound_is_called_one():
    found = verdict(
        {"difference": ["loss", "a", "b"], "at_most": 1e6}, {"a": [2e-6, 3e-6, 4e-6], "b": [1e-6] * 3}
    )
    assert found.outcome == CONFIRMED and "loose by a factor of" in found.effect


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


def test_the_lowest_and_the_highest():
    values = {"a": [1.0, 1.1, 1.2], "b": [3.0, 3.1, 3.2], "c": [2.0, 2.1, 2.2]}
    assert verdict({"lowest": ["loss", "a"]}, values).outcome == CONFIRMED
    assert verdict({"highest": ["loss", "c"]}, values).outcome == CONTRADICTED
    assert verdict({"highest": ["loss", "c"], "among": ["a"]}, values).outcome == CONFIRMED
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
    assert verdict(test, {"z": [], **same}, paper=paper).outcome == CONFIRMED
    assert (
        verdict(test, {name: values[:1] for name, values in same.items()}, paper=paper).outcome == UNDECIDED
    )
    assert verdict(test, same, at_baseline=["a"], paper=paper).outcome == NOT_RUN


def test_rank_correlation_shares_the_places_of_ties():
    for ours, theirs, expected in (
        ([1, 2, 2, 4, 5], [1, 2, 2, 4, 5], pytest.approx(1)),
        ([1, 2, 3, 4, 5], [5, 4, 3, 2, 1], pytest.approx(-1)),
        ([1, 1, 1, 1, 1], [1, 2, 3, 4, 5], None),
    ):
        values = {row: [value] for row, value in zip("abcde", ours, strict=True)}
        assert rank_correlation(values, dict(zip("abcde", theirs, strict=True))) == (expected, list("abcde"))


@pytest.mark.parametrize(
    ("test", "named"),
    [
        ({"ratios": ["loss", "a", "b"], "at_most": 1}, "ratios"),
        ({"ratio": ["loss", "a"], "at_most": 1}, "ratio"),
        ({"ratio": ["loss", "a", "b"]}, "at_most"),
        ({"lowest": ["loss", "a"], "at_most": 1}, "lowest"),
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
        (3.0, 2.0, CONTRADICTED, ""),
        (1e-6, 1e6, CONFIRMED, "the bound is loose by a factor of 1e+12"),
    ],
)
def test_a_bound_of_a_theorem(largest, bound, outcome, words):
    found = judge_bound(largest, bound)
    assert (found.outcome, found.effect) == (outcome, words)
