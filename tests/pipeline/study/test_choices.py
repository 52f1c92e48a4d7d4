"""Which cells a study has: choices without a YAML, and data prepared folder by folder."""

import pytest

from pipeline.errors import UserError
from pipeline.study import run
from pipeline.study.cells import Plan
from pipeline.study.declaration import find_study, read_study
from pipeline.study.selection import cells_of


@pytest.fixture
def plan(tmp_path):
    return Plan(read_study(find_study("images")), tmp_path, None, ())


def test_choices_without_a_yaml_are_left_out_unless_they_were_asked_for(plan):
    methods = [cell.values["method"] for cell in cells_of(plan, {"preset": ["digits"]}, 1)]
    assert methods == ["softmax", "linear", "t2", "lln_diag"]
    assert [cell.name for cell in cells_of(plan, {"preset": ["mnist"], "method": ["lsh"]}, 1)] == [
        "mnist, lsh-1, seed 1",
        "mnist, lsh-4, seed 1",
    ]
    with pytest.raises(UserError, match="--method lsh-1: images has no settings for it"):
        cells_of(plan, {"preset": ["digits"], "method": ["lsh-1", "softmax"]}, 1)
    with pytest.raises(UserError, match="--preset digit: .*; did you mean digits?"):
        cells_of(plan, {"preset": ["digit"]}, 1)


def test_only_the_folder_of_data_that_is_missing_is_prepared(plan, monkeypatch, tmp_path):
    done = []
    monkeypatch.setattr(run, "ROOT", tmp_path)
    monkeypatch.setattr("pipeline.training.recipe.ROOT", tmp_path)
    monkeypatch.setattr(run, "run_script", lambda *words: done.append(words))
    cells = cells_of(plan, {"preset": ["digits"]}, 1)
    with pytest.raises(UserError, match="no data folder .*digits"):
        run.prepare_data(plan.study, cells, None)
    assert done == [("images.sh", "digits", "--dest", "data/images/digits")]
