"""Tuning: which values are tried, in which runs, and which one is chosen."""

import math
from dataclasses import replace

import pytest

from lab.errors import UserError
from lab.files import write_json
from lab.run.recipe import option
from lab.study.cells import check_flags
from lab.study.cli import run_missing, show_status
from lab.study.declaration import read_study
from lab.study.records import OLDER, all_records
from lab.study.shown import without_outdated
from lab.study.tuning import (
    best_value,
    is_tuned_as_now,
    runs_of_tuning,
    tried,
    tuning_cells,
    with_all_tried,
    with_chosen,
    without_score,
)
from tests.lab.study.conftest import cells, record_of, write_record


def test_tuning_shortens_the_whole_schedule():
    study = read_study("lm_tuned")
    [cell] = cells(study, {"method": ["transnormer_t1"]})
    tried = tuning_cells(cell)
    flags = tried[0].own_flags()
    assert [option(one.own_flags(), "--lr") for one in tried] == list(study.tune.values)
    assert option(flags, "--max-update") == "333"
    assert option(flags, "--warmup-updates") == "33"  # of 100 in 1,000 updates
    assert option(flags, "--total-num-update") == "333"


def tuned(cell, curves, name="valid"):
    """The value that tuning chooses if its runs have logged these curves."""
    for one, curve in zip(tuning_cells(cell), curves, strict=True):
        training = {"updates": 3, "seconds": 1.0, "curves": {name: curve}}
        write_record(one, record_of(one.key, {}, training=training))
    return best_value(cell)


@pytest.mark.parametrize(
    ("losses", "chosen"),
    [
        ({"0.01": 3.0, "0.02": 2.0, "0.04": 1.0, "0.08": math.nan}, "0.04"),
        ({"0.01": 2.0, "0.02": 3.0, "0.005": 1.0, "0.0025": 1.5}, "0.005"),
        ({f"{0.01 * 2**n:g}": 9.0 - n for n in range(10)}, f"{0.01 * 2**9:g}"),
        ({"0.01": math.nan, "0.02": math.nan, "0.005": math.nan, "0.0025": 2.0, "0.00125": 3.0}, "0.0025"),
    ],
)
def test_tuning_goes_on_until_the_best_lies_inside(study_with, tmp_path, losses, chosen):
    """By factors of two in either direction, as long as the best is at an end, eight times at most."""
    tune = {"axis": "lr", "values": [0.01, 0.02], "updates": 3, "bracket": True}
    [cell] = cells(study_with(tune=tune), {"method": ["elu"]}, out=tmp_path / "out")
    tried = []
    while missing := [one for one in tuning_cells(cell) if not one.record()]:
        assert best_value(cell) is None
        tried += [one.tuning for one in missing]
        for one in missing:
            training = {"updates": 3, "seconds": 1.0, "curves": {"valid": [[1, losses[one.tuning]]]}}
            write_record(one, record_of(one.key, {}, training=training))
    assert tried == list(losses) and best_value(cell) == chosen


@pytest.mark.parametrize(
    ("values", "losses", "further"),
    [
        ([2, 10], [1.0, 2.0], "1"),  # by number: as text 10 comes before 2
        ([0.02], [math.nan], "0.01"),  # the only value has diverged: half of it
        ([0.02], [1.0], "0.04"),
    ],
)
def test_which_value_tuning_tries_next(study_with, tmp_path, values, losses, further):
    tune = {"axis": "lr", "values": values, "updates": 3, "bracket": True}
    [cell] = cells(study_with(tune=tune), {"method": ["elu"]}, out=tmp_path / "out")
    assert tuned(cell, [[[1, loss]] for loss in losses]) is None
    assert [one.tuning for one in tuning_cells(cell)] == [*map(str, values), further]


def test_all_seeds_have_the_value_that_the_first_one_has_chosen(study_with, tmp_path):
    study = study_with(tune={"axis": "lr", "values": [1, 2], "updates": 3}, seeds=3)
    first, *others = cells(study, {"method": ["elu"]}, 3, out=tmp_path / "out")
    for cell in (first, *others):
        assert [run.seed for run in tuning_cells(cell)] == [first.seed] * 2
    assert tuned(first, ([[1, 2.0]], [[1, 1.0]])) == "2"
    assert [(cell.seed, cell.chosen) for cell in with_chosen(others)] == [(2, "2"), (3, "2")]


@pytest.mark.parametrize(
    ("by", "curve", "chosen"), [("valid_loss", "valid", "1"), ("valid_accuracy", "valid_accuracy", "2")]
)
def test_tuning_chooses_by_the_best_point_of_a_curve(study_with, tmp_path, by, curve, chosen):
    study = study_with(tune={"axis": "lr", "values": [1, 2], "updates": 3, "by": by})
    [cell] = cells(study, {"method": ["elu"]}, out=tmp_path / "out")
    assert with_chosen([cell]) == []
    points = [[1, 2.0], [2, 3.0], [3, 2.5]], [[1, 2.25], [2, 3.25], [3, 2.25]]
    assert tuned(cell, points, curve) == chosen
    [settled] = with_chosen([cell])
    assert settled.own_flags()[-4:] == ["--lr", chosen, "--seed", "1"]


def test_tuning_passes_over_what_has_diverged(study_with, tmp_path):
    study = study_with(tune={"axis": "lr", "values": [1, 2], "updates": 3})
    [cell] = cells(study, {"method": ["elu"]}, out=tmp_path / "out")
    assert tuned(cell, ([[1, math.nan]], [[1, 2.5]])) == "2"
    first, _ = tuning_cells(cell)
    assert tuned(cell, ([[1, 2.0]], [[1, 2.5]])) == "1"
    write_json(first.record_path, {**first.record(), "diverged": "at update 2"})
    assert best_value(cell) == "2"
    assert without_score([cell]) == []
    for curve in ([], [[1, math.inf]]):
        assert tuned(cell, (curve, curve)) is None and with_chosen([cell]) == []
        [advice] = without_score([cell])
        assert advice.startswith("tiny, elu: no run of tuning has logged a valid_loss that is a number")


def test_values_tried_since_a_record_was_made_count(study_with, tmp_path):
    study = study_with(tune={"axis": "lr", "values": [1, 2, 4], "updates": 3})
    [cell] = cells(study, {"method": ["elu"]}, out=tmp_path)
    assert tuned(cell, ([[1, 2.0]], [[1, 1.0]], [[1, 3.0]])) == "2"
    before = {"setting": "lr", "by": "valid_loss", "chosen": "2", "tried": {"1": 2.0, "2": 1.0}}
    write_record(replace(cell, chosen="2"), {**record_of(cell.key, {}), "tuned": before})
    [record] = with_all_tried(all_records(tmp_path, study))
    assert record["tuned"] == {**before, "tried": {"1": 2.0, "2": 1.0, "4": 3.0}}
    assert tried(replace(cell, chosen="2")) == {**record["tuned"], "updates": 3}
    assert tuned(cell, ([[1, 2.5]], [[1, 1.0]], [[1, 3.0]])) == "2"  # the first one, made again
    [record] = with_all_tried(all_records(tmp_path, study))
    assert record["tuned"]["tried"] == {"1": 2.5, "2": 1.0, "4": 3.0}


def test_status_of_a_cell_whose_study_tries_another_value(study_with, tmp_path, capsys):
    """Its record has the value chosen among the others, which may change."""
    tune = {"axis": "lr", "values": [1, 2, 4], "updates": 3}
    [cell] = cells(study_with(tune=tune), {"method": ["elu"]}, out=tmp_path)
    *before, _ = tuning_cells(cell)
    for one in (*before, replace(cell, chosen="2")):
        training = {"updates": 3, "seconds": 1.0, "curves": {"valid": [[1, 1.0]]}}
        write_record(one, record_of(one.key, {}, training=training))
    show_status([cell])
    *runs, last, _ = capsys.readouterr().out.splitlines()
    assert [line.rpartition(": ")[2] for line in runs] == ["valid_loss 1", "valid_loss 1", "missing"]
    assert last == "tiny, elu, seed 1: done; its lr may change when the missing runs of tuning are done"


def test_a_record_whose_value_a_better_one_replaces(study_with, tmp_path, monkeypatch, capsys):
    """It keeps no other row from running, and no verdict counts it."""
    study = study_with(tune={"axis": "lr", "values": [1, 2, 4], "updates": 3})
    elu, softmax = cells(study, {"method": ["elu", "softmax"]}, out=tmp_path)
    for cell, best in ((elu, "4"), (softmax, "2")):
        losses = {"1": 3.0, "2": 2.0, "4": 2.5, best: 1.0}
        tuned(cell, [[[1, losses[value]]] for value in study.tune.values])
    before = {"setting": "lr", "by": "valid_loss", "chosen": "2", "tried": {"1": 3.0, "2": 2.0}}
    write_record(replace(elu, chosen="2"), {**record_of(elu.key, {}, **elu.measurement()), "tuned": before})
    [record] = with_all_tried(all_records(tmp_path, study))
    assert record["tuned"]["tried"] == {"1": 3.0, "2": 2.0, "4": 1.0}
    assert [OLDER in one for one in without_outdated(study, [record])] == [True]
    chosen = with_chosen([elu, softmax])
    ran = []
    monkeypatch.setattr("lab.study.cli.run_cells", lambda missing, *unused: ran.extend(missing) or [])
    [failure] = run_missing("tiny", chosen, 1, [])
    assert failure.startswith("tiny, elu, seed 1: its lr is 4 now; ") and "with other settings" in failure
    assert [cell.values["method"] for cell in ran] == ["softmax"]
    assert "2 runs, 0 done before" in capsys.readouterr().out
    show_status([elu])
    assert "tiny, elu, seed 1: its lr is 4 now; " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({}, True),
        ({"updates": 4}, False),
        ({"values": [1, 2, 4]}, False),
        ({"values": [2]}, True),
        ({"values": [1]}, False),
        ({"bracket": True}, True),  # a larger one is still to be tried
        ({"by": "valid_accuracy"}, False),
    ],
)
def test_whether_a_record_was_tuned_as_the_study_says_now(study_with, change, same):
    tune = {"axis": "lr", "values": [1, 2], "updates": 3, **change}
    before = {"setting": "lr", "by": "valid_loss", "chosen": "2", "tried": {"1": 2.0, "2": 1.0}, "updates": 3}
    assert is_tuned_as_now(study_with(tune=tune).tune, before) == same


def test_only_some_choices_are_tuned(study_with, tmp_path):
    tune = {"axis": "lr", "values": [1, 2], "updates": 3, "only": {"method": "elu"}}
    study = study_with(tune=tune)
    ours = cells(study, {"method": ["elu", "softmax"]}, out=tmp_path / "out")
    assert {cell.values["method"] for cell in runs_of_tuning(ours)} == {"elu"}
    [untuned] = with_chosen(ours)
    assert untuned.values["method"] == "softmax" and not option(untuned.own_flags(), "--lr")
    plan, (preset, method) = replace(untuned.plan, flags=("--lr", "3")), untuned.choices
    check_flags(plan, [[preset], [method]])
    with pytest.raises(UserError, match="--lr differs from cell to cell; use tune in the study's YAML"):
        check_flags(plan, [[preset], [one.choices[1] for one in ours]])
