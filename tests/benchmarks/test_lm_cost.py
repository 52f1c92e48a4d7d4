"""The cost benchmark: its cases and its report. No times are judged."""

import pytest

from benchmarks import lm_cost
from benchmarks.lm_cost import goals
from benchmarks.models import TINY, LanguageModel
from lab.methods import LANGUAGE_MODELS
from lab.publish.costs import NOT_MEASURED, Cell, Goal, cell, ratio
from tests.benchmarks.records import results, steps


def sample(step: float = 2.0, late_token: float = 0.001) -> dict:
    """Results in which every step takes 2 s but the longest, and every token 1 ms but the last."""

    def answer(case):
        if case["kind"] == "decoding":
            seconds = {str(p): 0.001 for p in lm_cost.FULL["positions"]} | {"100000": late_token}
            return {"token_seconds": seconds, "visit_seconds": {at: [one] for at, one in seconds.items()}}
        long = case["length"] == 16384
        if long and case["architecture"] == "transformer_lm":
            return "out of memory"
        return steps(step if long else 2.0, 2**30)

    return results(lm_cost, LANGUAGE_MODELS, answer)


def test_batches_are_full_and_decoding_comes_first():
    plan = lm_cost.FULL
    assert plan["positions"] == [10, 1000, 10_000, 100_000]
    assert all(plan["tokens"] % length == 0 for length in plan["lengths"])
    cases = lm_cost.cases_of({**plan, "architectures": ["a", "b"]})
    turns = [(c["architecture"], c["round"]) for c in cases if c["kind"] == "decoding"]
    assert turns == [(name, turn) for turn in range(plan["decoding_rounds"]) for name in "ab"]
    assert len(turns) > 2 and cases[0]["kind"] == "decoding"


def test_goals_are_judged_by_the_ratio():
    assert {goal.outcome for goal in goals(sample())} == {"met"}
    slow = goals(sample(step=2.5, late_token=0.002))
    assert [goal.outcome for goal in slow] == ["not met", "met", "not met"] * 2
    assert slow[0].wanted.endswith("training time per token at 16,384 over that at 1,024: at most 1.2")
    assert slow[0].row()[1:] == ["1.25", "not met"]
    empty = goals({**sample(), "records": []})
    assert all(goal.row()[1:] == ["–", "not measured"] for goal in empty)


def test_slow_visits_do_not_change_the_time_of_a_token():
    records = [{"visit_seconds": {"10": visits}} for visits in ([0.002, 0.001], [0.002, 0.002])]
    assert lm_cost.undisturbed(Cell(10, "ok", [0.002, 0.002], records)) == 0.001


def test_samples_of_all_rounds_are_joined():
    found = cell(sample(), "training", "transnormer_t1", 1024)
    assert len(found.seconds) == 3 * lm_cost.FULL["rounds"] and found.median == 2.0


def test_vanilla_gets_the_width_everywhere():
    model = LanguageModel("transformer_lm", TINY, 32, 32, "cpu").cfg.model
    assert model.decoder_input_dim == model.decoder_output_dim == TINY.width


@pytest.mark.parametrize(
    ("value", "at_least", "outcome"),
    [
        (2.0, False, "met"),
        (2.5, False, "not met"),
        (2.0, True, "met"),
        (1.5, True, "not met"),
        (None, True, NOT_MEASURED),
    ],
)
def test_a_goal_is_met_at_its_bound(value, at_least, outcome):
    assert Goal("a ratio", value, 2.0, at_least).outcome == outcome


def test_a_cell_has_the_median_of_its_times_and_the_largest_peak():
    found = Cell(64, "ok", [1.0, 2.0, 6.0], [{"peak_bytes": size * 2**20} for size in (1, 3, 2)])
    other = Cell(64, "ok", [1.0], [{"peak_bytes": 2**20}])
    assert (found.median, found.peak) == (2.0, 3.0)
    assert ratio(found, other, lambda cell: cell.median) == 2.0
    assert ratio(found, Cell(64, "out of memory", [], []), lambda cell: cell.median) is None
