"""The runs that the analyses need: their list; where figures go. Nothing is trained here."""

import pytest

from pipeline.commands.studies.analyse import SUBCOMMANDS, parse
from pipeline.files import ROOT
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
    assert "4 runs, 1 done before" in text and "half-softmax-seed1: missing; --log-interval 1" in text
    assert "half-lln-seed1: done, but settings cannot be compared without data; " in text
    assert [path.name for path in tmp_path.iterdir()] == ["half-lln-seed1.json"]


@pytest.mark.parametrize("what", sorted({*SUBCOMMANDS} - {"runs"}))
def test_figures_of_a_user_never_meet_the_committed_ones(what):
    words = [what] if what == "report" else [what, "--redraw"]
    assert parse(words).out == ROOT / "runs" / "figures"
    assert str(parse([*words, "--out", "results/analysis"]).out) == "results/analysis"
