"""The page of associative recall: answers by the number of pairs, and the picture of them."""

from dataclasses import replace

import numpy as np
import pytest

from lab.methods import NAMED
from lab.publish import recall
from lab.study.declaration import read_study
from lab.study.page import write_page
from lab.study.pictures import pictures_of, section_of
from lab.study.schema import Baseline
from tests.lab.study.conftest import record_of

STUDY = read_study("recall")
SETTINGS = {
    "task": {"_name": "recall"},
    "model": {"decoder_layers": 2, "decoder_attention_heads": 1},
    "dataset": {"batch_size": 64},
}


METHODS = list(STUDY.axes["method"].choices)


def records():
    """Three seeds of every method, each with its own share of answers and size of the state."""
    found = []
    for number, method in enumerate(METHODS):
        share, state = 0.9 - number / 50, 1_000 * (1 + number)
        for seed in (1, 2, 3):
            cell = {"width": "64", "length": "n64", "method": method, "seed": seed}
            by_pairs = {str(pairs): share - pairs / 50 + seed / 1_000 for pairs in (1, 2, 4, 8, 16)}
            values = {"accuracy": share + seed / 1_000, "by_pairs": by_pairs, "state_numbers": state}
            found.append(record_of(cell, {**values, "examples": 256}, settings=SETTINGS, study="recall"))
    return found


def test_the_page_answers_when_its_methods_are_measured():
    page = " ".join(write_page(STUDY, records()).split())
    first = "In rows of 64 tokens with 16 pairs softmax attention answers 58 % of the questions, GLA 40 %"
    assert f"{first}, T1 56 %, T2 54 %, TransNormerLLM 42 %, NormAttention alone 50 % and 1+elu 52 %" in page
    assert "## width 64, 64 tokens" in page
    assert "| softmax | 88.2 (88.1 to 88.3) | 86.2 (86.1 to 86.3) |" in page
    assert "| naming the pairs' most frequent value | 100.0 | 50.2 | 25.6 | 13.8 | 8.7 | – |" in page
    assert "There is no answer yet" in write_page(STUDY, records()[:2])


def test_the_baseline_names_the_most_frequent_of_256_values_drawn_with_replacement():
    [baseline], generator = STUDY.baselines, np.random.default_rng(1)
    for pairs in (1, 2, 4, 8, 16, 32, 64):
        rows = generator.integers(0, 256, (4_000, pairs))
        share = np.mean([np.bincount(row).max() for row in rows]) / pairs
        assert abs(share - baseline.found[f"by_pairs.{pairs}"]) < 0.003


def test_a_row_that_only_names_some_value_has_learned_nothing():
    guessing = {str(pairs): 1 / pairs for pairs in (1, 2, 4, 8, 16)}
    [first, *others] = records()[::3]
    page = write_page(STUDY, [{**first, "found": {**first["found"], "by_pairs": guessing}}, *others])
    assert "| softmax\\* |" in page and "| TransNormer T1 |" in page


def test_the_picture_has_a_curve_for_each_method_with_the_size_of_its_state(tmp_path):
    [picture] = pictures_of(STUDY, records(), tmp_path)
    assert picture.path.name == "64-n64-pairs.png"
    picture.draw(picture.path)
    assert picture.is_current()
    *curves, guessing = recall.curves_of(section_of(STUDY, records()))
    labels = [choice.label for choice in STUDY.axes["method"].choices.values()]
    assert [curve.label.partition(", ")[0] for curve in curves] == labels
    assert [curve.color for curve in curves] == [NAMED[name].color for name in METHODS]
    first = curves[0]
    assert (first.label, list(first.x)) == ("softmax, 1,000", [1, 2, 4, 8, 16])
    assert [round(y, 6) for y in first.y] == [88.2, 86.2, 82.2, 74.2, 58.2]
    assert (round(first.low[0], 6), round(first.high[0], 6)) == (88.1, 88.3)
    assert [round(y, 6) for y in guessing.y] == [100, 50.2, 25.6, 13.8, 8.7]


@pytest.mark.parametrize(("share", "lines"), [("accuracy", []), ("by_pairs.2", [("guessing", [2], [50.0])])])
def test_the_picture_shows_a_baseline_where_it_has_shares(share, lines):
    study = replace(STUDY, baselines=(Baseline("guessing", {share: 0.5}),))
    curves = recall.curves_of(section_of(study, records()))[len(METHODS) :]
    assert [(curve.label, curve.x, curve.y) for curve in curves] == lines
