"""The measuring command: which runs, what is skipped, what the record says. Nothing is trained here."""

import json
import subprocess
from pathlib import Path

import pytest

from pipeline.data.prepared import PreparedData
from pipeline.errors import UserError
from pipeline.files import ROOT
from pipeline.studies import encoders
from pipeline.studies import language_models as measure_lm
from tests.helpers.logs import LOG

BASE = """
common: {log_format: json}
task: {_name: language_modeling, data: data/corpus}
optimization: {max_update: 40}
"""


def test_every_configuration_is_run_and_two_with_a_second_seed():
    names = [run.name for run in measure_lm.all_runs()]
    configurations = {path.stem for path in measure_lm.CONFIGS.glob("*.yaml")} - {"base"}
    assert set(names[:-2]) == {f"{name}-seed1" for name in configurations}
    assert sorted(names[-2:]) == ["transformer_lm-seed2", "transnormer_t1-seed2"]
    assert len(names) == len(configurations) + 2
    assert all(run.config.is_file() for run in measure_lm.all_runs())


def test_only_chooses_an_architecture_or_a_run():
    assert [run.seed for run in measure_lm.chosen_runs("transnormer_t1")] == [1, 2]
    assert [run.seed for run in measure_lm.chosen_runs("transnormer_t1-seed2")] == [2]
    with pytest.raises(UserError, match="choose one of transformer_lm, transnormer_t1, "):
        measure_lm.chosen_runs("nonsense")


@pytest.fixture
def commands(tmp_path, monkeypatch):
    """YAML files, data, training and evaluation replaced; returns the runs that were trained."""
    configs = tmp_path / "configs" / "small"
    configs.mkdir(parents=True)
    (configs / "base.yaml").write_text(BASE)
    for name in measure_lm.SEEDS:
        text = f"defaults: [_self_, base]\nmodel: {{_name: {name}}}\n"
        (configs / f"{name}.yaml").write_text(text)
    data = PreparedData(tmp_path, {"corpus": "c", "tokenizer": "words", "vocabulary": 9, "splits": {}})
    trained = []

    def train(config, folder, machines, save_dir, flags):
        trained.append((config.stem, *flags))
        save_dir.mkdir(parents=True, exist_ok=True)
        (save_dir / "train.log").write_text("".join(LOG))

    def evaluations(checkpoint: Path, folder: Path):
        figures = dict.fromkeys(measure_lm.EVALUATION_FIGURES, 5.0)
        return {split: {"parameters": 7, "updates": 40, **figures} for split in measure_lm.EVALUATED}

    monkeypatch.setattr(measure_lm, "CONFIGS", configs)
    monkeypatch.setattr(measure_lm, "RUNS", tmp_path / "runs")
    monkeypatch.setattr(measure_lm, "prepared_data", lambda folder, source: data)
    monkeypatch.setattr(measure_lm, "train", train)
    monkeypatch.setattr(measure_lm, "evaluations", evaluations)
    return trained


def measure(monkeypatch, *words: str) -> None:
    monkeypatch.setattr("sys.argv", ["measure_lm.sh", *words])
    measure_lm.main()


def test_what_is_done_is_skipped(commands, tmp_path, monkeypatch, capsys):
    out = str(tmp_path / "a b")
    measure(monkeypatch, "--out", out, "--only", "transnormer_t1-seed2")
    assert commands == [("transnormer_t1", "--seed", "2", "--max-update", "40")]
    measure(monkeypatch, "--out", out)
    everything = len(measure_lm.all_runs())
    assert len(commands) == everything
    measure(monkeypatch, "--out", out)
    assert len(commands) == everything
    assert capsys.readouterr().out.count("done before") == 1 + everything
    record = json.loads((tmp_path / "a b" / "transnormer_t1-seed2.json").read_text())
    assert record["seed"] == 2 and record["updates"] == 40 and record["best_update"] == 40
    assert record["test"]["perplexity_per_word"] == 5.0 and record["parameters"] == 7
    assert record["settings"]["model"]["_name"] == "transnormer_t1"
    assert str(tmp_path) not in json.dumps(record)


@pytest.mark.parametrize("command", [measure_lm, encoders])
def test_committed_results_are_not_taken_for_ones_own(command):
    """On a fresh clone the command trains."""
    assert command.parse([]).out == command.RUNS != command.RESULTS


def test_what_was_measured_is_shown(commands, tmp_path, monkeypatch, capsys):
    measure(monkeypatch, "--out", str(tmp_path / "out"), "--only", "transnormer_t2")
    assert "| TransNormer T2, 1 | 7 | 40 (40) |" in capsys.readouterr().out


def test_a_result_of_other_settings_is_neither_taken_nor_overwritten(commands, tmp_path, monkeypatch):
    out = str(tmp_path / "out")
    measure(monkeypatch, "--out", out, "--only", "transnormer_t2")
    before = (tmp_path / "out" / "transnormer_t2-seed1.json").read_text()
    with pytest.raises(UserError, match="other settings"):
        measure(monkeypatch, "--out", out, "--only", "transnormer_t2", "--updates", "7")
    assert (tmp_path / "out" / "transnormer_t2-seed1.json").read_text() == before
    assert len(commands) == 1


def test_a_run_that_is_stopped_leaves_no_result(commands, tmp_path, monkeypatch):
    def stopped(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(measure_lm, "train", stopped)
    with pytest.raises(KeyboardInterrupt):
        measure(monkeypatch, "--out", str(tmp_path / "out"), "--only", "transnormer_t2")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--updates", "5", "--out", str(measure_lm.RESULTS)), "needs another --out"),
        (("--updates", "0"), "not a whole number of 1 or more"),
        (("--nonsense",), "unrecognized"),
        (("--only", "nonsense"), "names no run"),
    ],
)
def test_mistakes_are_said_before_anything_is_done(commands, monkeypatch, words, sentence):
    with pytest.raises(UserError, match=sentence):
        measure(monkeypatch, *words)
    assert commands == []


def test_help_needs_no_environment():
    command = [str(ROOT / "scripts" / "measure_lm.sh"), "--help"]
    assert "--updates N" in subprocess.run(command, capture_output=True, text=True, check=True).stdout
