"""The runs that the analyses need: their list. Nothing is trained here."""

import pytest

from pipeline.studies import analyse
from pipeline.studies.analysis import runs


@pytest.fixture
def no_data(tmp_path, monkeypatch):
    """A project without prepared data, which must not be asked for."""
    monkeypatch.setattr(runs.Experiment, "data_folder", lambda self: tmp_path / "data")
    monkeypatch.setattr(runs, "prepared_wikitext2", None)


def test_the_list_of_runs_needs_no_data(no_data, call, tmp_path, capsys):
    (tmp_path / "half-lln-seed1.json").write_text("{}")
    call(analyse, "runs", "--dry-run", "--only", "half", "--updates", "9", "--runs", tmp_path)
    text = capsys.readouterr().out
    assert "2 runs, 1 done before" in text and "half-softmax-seed1: missing; --log-interval 1" in text
    assert "half-lln-seed1: done, but settings cannot be compared without data; " in text
    assert [path.name for path in tmp_path.iterdir()] == ["half-lln-seed1.json"]
