"""lra_table.sh: what is finished is skipped, settings do not mix, and what bad input gets."""

import json

import pytest

from pipeline.errors import UserError
from pipeline.files import ROOT
from pipeline.reports.lra import read_cells, write_table
from pipeline.studies import lra_sweep, measured_cell
from pipeline.training.lra_attentions import attention_flags
from tests.helpers.lra import write_lra

BASE = """
common: {seed: 5, log_format: json, log_interval: 1}
task: {_name: lra}
criterion: {_name: lra}
dataset: {batch_size: 8, required_batch_size_multiple: 1, num_workers: 0}
distributed_training: {distributed_world_size: 1}
optimization: {max_update: 3, update_freq: [1], lr: [0.01], clip_norm: 0.0}
optimizer: {_name: adam, adam_betas: "(0.9, 0.999)"}
lr_scheduler: {_name: fixed}
checkpoint:
  no_epoch_checkpoints: true
  best_checkpoint_metric: accuracy
  maximize_best_checkpoint_metric: true
model: {_name: lra_skyformer, encoder_embed_dim: 16, encoder_ffn_embed_dim: 24}
"""


@pytest.fixture(scope="module")
def preset(tmp_path_factory):
    folder = tmp_path_factory.mktemp("configs") / "tiny"
    folder.mkdir()
    (folder / "base.yaml").write_text(BASE)
    for task in ("listops", "image"):
        (folder / f"{task}.yaml").write_text(
            f"defaults: [_self_, base]\ntask: {{lra_task: {task}, data: data/lra/{task}}}\n"
        )
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Two tasks; the second has no valid split."""
    folder = tmp_path_factory.mktemp("data")
    write_lra(folder / "listops")
    write_lra(folder / "image", "image", splits={"train": 24, "test": 11})
    return folder


@pytest.mark.slow
def test_a_sweep_is_run_once_and_its_table_comes_from_its_json(
    call, refused, preset, data, tmp_path, monkeypatch, capsys
):
    out = tmp_path / "a sweep"
    words = [preset, "--data", data, "--out", out, "--tasks", "listops,image", "--jobs", 2]
    words += ["--attention", "elu,transnormer_t2"]
    call(lra_sweep, *words)
    table = (out / "lra.md").read_text()
    assert capsys.readouterr().out.count("% of 11 right (test)") == 4
    names = {str(path.relative_to(out)) for path in out.glob("*/*/*.json")}
    assert names == {f"{t}/{a}/seed5.json" for t in ("listops", "image") for a in ("elu", "transnormer_t2")}
    result = json.loads((out / "listops/transnormer_t2/seed5.json").read_text())
    assert (result["plan"], result["steps"], result["chosen_on_valid"]) == ("diag*1,norm*1", 3, True)
    assert result["options"]["encoder_norm"] == "rmsnorm" and result["options"]["encoder_ffn"] == "glu"
    last = json.loads((out / "image/elu/seed5.json").read_text())
    assert not last["chosen_on_valid"] and last["checkpoint"] == "checkpoint_last.pt"
    kept = [path.name for path in (out / "listops/elu/seed5").glob("*.pt")]
    assert kept == ["checkpoint_best.pt"]

    def refuse(command, arguments, log, *unused, **unused_too):
        raise AssertionError(f"fairseq-{command} is run for {log}")

    monkeypatch.setattr(measured_cell, "run_fairseq", refuse)
    (out / "lra.md").unlink()
    call(lra_sweep, *words)
    assert "4 runs, 4 done before" in capsys.readouterr().out
    assert (out / "lra.md").read_text() == table == write_table(read_cells(out)) + "\n"
    for more in (words, [*words[:-1], "lln"]):  # nothing is trained that could not join the table
        assert "runs on listops differ in flags" in refused(lra_sweep, *more, "--lr", "0.02")
    (out / "image/elu/seed6.json").write_text("{}")
    assert "seed6.json is no result of scripts/lra_table.sh" in refused(lra_sweep, *words)


def test_a_sweep_without_results_writes_no_table(refused, preset, data, tmp_path, monkeypatch):
    def fail(*unused, **unused_too):
        raise UserError("the disk is full")

    monkeypatch.setattr(measured_cell, "run_fairseq", fail)
    words = [preset, "--data", data, "--out", tmp_path, "--tasks", "listops", "--attention", "elu"]
    assert "1 run failed; the first: listops" in refused(lra_sweep, *words)
    assert not (tmp_path / "lra.md").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--attention", "elu,nrom"], "'nrom' is no attention; choose all, or some of transnormer_t1"),
        (["--tasks", "listops,texts"], "there is no task 'texts'"),
        (["--seed", "3"], "--seed differs from run to run; use --seeds"),
        (["--encoder-attention", "elu"], "--encoder-attention differs from run to run; use --attention"),
        (["--tasks", "text", "--data", "nowhere"], "no data folder"),
        (["--data", "nowhere"], "nowhere holds no prepared task; data-prep/lra.sh makes them"),
        (["--seeds", "0"], "'0' is not a whole number of 1 or more"),
    ],
)
def test_bad_input(refused, words, sentence):
    assert sentence in refused(lra_sweep, ROOT / "configs" / "lra_skyformer", *words)


def test_a_folder_that_is_no_preset(refused, tmp_path):
    assert "no folder" in refused(lra_sweep, tmp_path / "nowhere")
    assert "no configuration file" in refused(lra_sweep, ROOT / "configs" / "wikitext2")


def test_flags_of_attentions():
    assert attention_flags("lra_skyformer", "lln", 2) == ["--encoder-attention", "lln"]
    t1 = attention_flags("lra_skyformer", "transnormer_t1", 6)
    assert dict(zip(t1[::2], t1[1::2], strict=True)) == {
        "--encoder-attention": "diag*3,norm*3", "--encoder-ffn": "glu", "--encoder-norm": "rmsnorm",
        "--diag-activation": "relu", "--norm-feature-map": "elu",
    }  # fmt: skip
    assert "--encoder-norm" not in attention_flags("lra_state_space", "transnormer_t2", 2)
