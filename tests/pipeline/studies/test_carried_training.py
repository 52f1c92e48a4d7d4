"""measure_carried.sh: both ways of training, evaluated both ways; the table; what bad input gets."""

import json

import pytest

from pipeline.reports.carried_training import read_carried, write_carried_table
from pipeline.studies import carried_training, measured_cell

TINY = ["--decoder-embed-dim", 16, "--decoder-layers", 2, "--decoder-attention-heads", 2]
SHORT = [*TINY, "--max-update", 2, "--warmup-updates", 1, "--disable-validation", "--log-interval", 1]


@pytest.mark.slow
def test_runs_are_made_once_and_the_table_comes_from_their_json(
    call, refused, corpus, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(carried_training, "READ_AT_ONCE", 16)
    words = ["--models", "transnormer_t1", "--segments", 128, "--data", corpus, "--out", tmp_path, *SHORT]
    call(carried_training, *words)
    found = {path.parent.name: json.loads(path.read_text()) for path in tmp_path.glob("*/*/seed1.json")}
    assert found.keys() == {"128-apart", "128-carried"}
    for result in found.values():
        assert result["updates"] == 2 and result["tokens_per_update"] == 2048
        assert result["apart"]["tokens"] >= result["carried"]["tokens"] > 0
        assert sum(bucket["tokens"] for bucket in result["carried"]["buckets"]) == result["carried"]["tokens"]
        # Two updates over, the loss is still about that of guessing one of 60 words.
        assert 2 < result["apart"]["loss_nats_per_token"] < 6
    log = (tmp_path / "transnormer_t1" / "128-carried" / "seed1" / "train.log").read_text()
    assert "carried_language_modeling" in log
    table = (tmp_path / "carried.md").read_text()
    assert table == write_carried_table(read_carried(tmp_path)) + "\n"
    assert "| TransNormer T1 | 128 | samples apart |" in table and "2 updates of 2,048 tokens" in table
    assert (tmp_path / "carried.png").read_bytes().startswith(b"\x89PNG")
    monkeypatch.setattr(measured_cell, "run_fairseq", None)
    call(carried_training, *words)
    assert "2 runs, 2 done before" in capsys.readouterr().out
    assert "was made with other settings" in refused(carried_training, *words, "--lr", "0.1")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--models", "base"], "--models names 'base'; choose from cosformer_lm, "),
        (["--segments", "0"], "--segments is 0; expected numbers above 0"),
        (["--segments", "100"], "--segments names 100, which does not divide the 2,048 of a batch"),
        (["--task", "masked_lm"], "--task differs from run to run"),
        (["--data", "nowhere"], "nowhere; make it with data-prep/wikitext.sh"),
    ],
)
def test_what_cannot_be_measured(words, sentence, refused, corpus, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert sentence in refused(carried_training, "--data", corpus, "--out", tmp_path, *words)
