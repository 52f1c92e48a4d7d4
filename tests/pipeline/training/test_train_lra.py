"""train_lra.sh and evaluate_lra.sh: resuming, several processes, records, and what bad input gets."""

import json
import shutil

import numpy as np
import pytest
import torch

from pipeline.evaluation import evaluate_lra
from pipeline.files import ROOT
from pipeline.training import train as train_lm
from pipeline.training.lra_run import read_lra_checkpoint
from pipeline.training.process.progress import read_records
from pipeline.training.recipe import read_experiment
from pipeline.training.train import Machines
from tests.helpers.lra import write_lra
from tests.helpers.two_processes import assert_two_train_as_one

TRAIN_LRA = "scripts/train_lra.sh"
BASE = """
common: {seed: 5, log_format: json, log_interval: 1}
task: {_name: lra}
criterion: {_name: lra}
dataset: {batch_size: 8, required_batch_size_multiple: 1, num_workers: 0}
distributed_training: {distributed_world_size: 1}
optimization: {max_update: 8, update_freq: [1], lr: [0.01], clip_norm: 0.0}
optimizer: {_name: adam_value_clip, adam_betas: "(0.9, 0.999)", adam_eps: 1.0e-06}
checkpoint:
  no_epoch_checkpoints: true
  best_checkpoint_metric: accuracy
  maximize_best_checkpoint_metric: true
  save_interval_updates: 4
  keep_interval_updates: 1
"""
PRESET = """
defaults: [_self_, base]
task: {lra_task: listops, data: nowhere}
lr_scheduler: {_name: %s, warmup_updates: 2, total_num_update: 40}
model: {_name: %s, encoder_embed_dim: 16, encoder_ffn_embed_dim: 24}
"""
UPDATES = 20


def losses(folder):
    """The training loss of each update; what a resumed run repeats counts as it was the last time."""
    with (folder / "train.log").open() as log:
        return {int(r["num_updates"]): r["loss"] for kind, r in read_records(log) if kind == "train_inner"}


@pytest.fixture(scope="module")
def configs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("configs") / "tiny"
    folder.mkdir()
    (folder / "base.yaml").write_text(BASE)
    for name, schedule in (("lra_skyformer", "one_cycle"), ("lra_state_space", "cosine_warmup")):
        (folder / f"{name}.yaml").write_text(PRESET % (schedule, name))
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_lra(tmp_path_factory.mktemp("a folder") / "listops")


@pytest.fixture(scope="module")
def uninterrupted(configs, data, tmp_path_factory):
    """The folder of a run of 20 updates over several epochs."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    config = configs / "lra_skyformer.yaml"
    train_lm.train(config, data, Machines(0), folder, ["--max-update", str(UPDATES)])
    return folder


def test_the_best_on_valid_is_kept_and_the_run_recorded(uninterrupted, data):
    assert list(losses(uninterrupted)) == list(range(1, UPDATES + 1))
    names = {path.name for path in uninterrupted.iterdir()}
    assert {"checkpoint_last.pt", "checkpoint_best.pt", "train.log", "tensorboard", "dict.txt"} <= names
    with (uninterrupted / "train.log").open() as log:
        valid = [record["valid_accuracy"] for kind, record in read_records(log) if kind == "valid"]
    best = torch.load(uninterrupted / "checkpoint_best.pt", weights_only=True)["extra_state"]
    assert best["best"] == pytest.approx(max(valid))
    run = json.loads((uninterrupted / "run.json").read_text())
    assert (run["preset"], run["steps"], run["seed"]) == ("lra_skyformer", UPDATES, 5)
    assert run["data"]["origin"] == "generated" and run["data"]["task"] == "listops"
    assert run["data"]["examples"] == {"train": 24, "valid": 9, "test": 11}
    assert {"commit", "date", "hardware", "command"} <= run["environment"].keys()


def test_evaluation_counts_every_example(call, uninterrupted, data, tmp_path, capsys):
    checkpoint = uninterrupted / "checkpoint_best.pt"
    for _ in range(2):  # its own result is replaced
        call(evaluate_lra, checkpoint, data, "--out", tmp_path / "test.json")
    result = json.loads((tmp_path / "test.json").read_text())
    assert result["examples"] == 11
    assert result["accuracy"] == pytest.approx(100 * result["correct"] / 11)
    assert (result["preset"], result["attention"], result["seed"]) == ("lra_skyformer", "softmax*2", 5)
    assert result["steps"] == UPDATES and result["training_data"]["origin"] == "generated"
    assert result["options"] == {"encoder_embed_dim": 16, "encoder_ffn_embed_dim": 24}
    assert f"{result['accuracy']:.2f} % of 11 right (test)" in capsys.readouterr().out
    call(evaluate_lra, checkpoint, data, "--split", "valid", "--out", tmp_path / "valid.json")
    valid = json.loads((tmp_path / "valid.json").read_text())
    kept = torch.load(checkpoint, weights_only=True)["extra_state"]["best"]
    assert valid["accuracy"] == pytest.approx(kept, abs=1e-4)


@pytest.mark.slow
def test_killed_and_resumed(call, kill, configs, data, uninterrupted, tmp_path):
    """`kill -9` between two checkpoints, in the third epoch: the same losses, dropout included."""
    folder = tmp_path / "run"
    words = [configs / "lra_skyformer.yaml", data, "--gpus", 0, "--save-dir", folder]
    words += ["--max-update", UPDATES]
    kill(TRAIN_LRA, words, folder / "train.log", '"num_updates": "7"')
    reached = read_lra_checkpoint(folder / "checkpoint_last.pt").updates
    assert 4 <= reached < UPDATES
    call(TRAIN_LRA, *words)
    expected = losses(uninterrupted)
    assert losses(folder) == {update: expected[update] for update in range(reached + 1, UPDATES + 1)}


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["lra_skyformer", "lra_state_space"])
def test_two_processes_train_what_one_with_twice_the_accumulation_trains(preset, configs, data, tmp_path):
    experiment = read_experiment(configs / f"{preset}.yaml")
    if preset == "lra_state_space":
        data = write_lra(tmp_path / "data", pipeline="state-space")
    words = ["--max-update", "4", "--disable-validation", "--dropout", "0", "--activation-dropout", "0"]
    words += ["--attention-dropout", "0", "--embedding-dropout", "0", "--batch-size", "4"]

    def flags(machines, save_dir, update_freq):
        extra = [*words, "--update-freq", update_freq]
        return train_lm.fairseq_arguments(experiment, data, machines, save_dir, extra)

    assert_two_train_as_one(flags, tmp_path, skip=("running_mean", "running_var", "num_batches_tracked"))


def test_data_of_the_other_pipeline_are_refused(refused, configs, data, tmp_path):
    words = [configs / "lra_state_space.yaml", data, "--gpus", 0, "--save-dir", tmp_path / "run"]
    assert "prepared for the pipeline skyformer, but lra_state_space" in refused(TRAIN_LRA, *words)


def test_dry_run(call, configs, data, capsys):
    call(TRAIN_LRA, configs / "lra_skyformer.yaml", data, "--gpus", 0, "--dry-run",
         "--encoder-attention", "diag,norm")  # fmt: skip
    line = capsys.readouterr().out
    assert "--arch lra_skyformer" in line and "--lr-scheduler one_cycle" in line
    assert "runs/tiny/lra_skyformer/diag,norm" in line
    real = ROOT / "configs" / "lra_skyformer" / "listops.yaml"
    call(TRAIN_LRA, real, data, "--gpus", 0, "--cpu-processes", 4, "--dry-run")
    assert "--update-freq 1 --batch-size 8 " in capsys.readouterr().out


def test_data_of_another_task(refused, configs, data, uninterrupted, tmp_path):
    image = write_lra(tmp_path / "image", "image")
    checkpoint = uninterrupted / "checkpoint_best.pt"
    run = (TRAIN_LRA, configs / "lra_skyformer.yaml", image, "--gpus", 0)
    assert f"{checkpoint} was trained on listops, but" in refused(evaluate_lra, checkpoint, image)
    sentence = refused(*run, "--save-dir", tmp_path / "run", "--restore-file", checkpoint)
    assert "was trained on listops, but" in sentence and not (tmp_path / "run").exists()
    folder = shutil.copytree(uninterrupted, tmp_path / "copy")
    (folder / "dict.txt").unlink()
    assert "holds image, but the settings" in refused(*run, "--save-dir", folder)
    other = shutil.copytree(data, tmp_path / "other")
    np.save(other / "train.label.npy", np.roll(np.load(data / "train.label.npy"), 1))
    run = (TRAIN_LRA, configs / "lra_skyformer.yaml", other, "--gpus", 0)
    assert "holds a run on other training data" in refused(*run, "--save-dir", folder)


def test_yaml_for_another_task(refused, configs, tmp_path):
    image = write_lra(tmp_path / "image", "image")
    sentence = refused(TRAIN_LRA, configs / "lra_skyformer.yaml", image, "--gpus", 0, "--save-dir",
                       tmp_path / "run")  # fmt: skip
    assert "holds image, but the settings or the checkpoint are for listops" in sentence
    assert not (tmp_path / "run").exists()


def test_what_a_failed_start_has_left_does_not_count(call, refused, configs, data, uninterrupted, tmp_path):
    """Data and dictionary of a run that never made a checkpoint are replaced; those of nobody's are not."""
    other, folder = shutil.copytree(data, tmp_path / "other"), tmp_path / "run"
    lines = (data / "dict.txt").read_text().splitlines(True)
    (other / "dict.txt").write_text("".join(reversed(lines)))
    run = (TRAIN_LRA, configs / "lra_skyformer.yaml")
    end = ("--gpus", 0, "--max-update", 3, "--save-dir", folder)
    refused(*run, other, *end, "--max-positions", 32)
    assert (folder / "dict.txt").read_bytes() == (other / "dict.txt").read_bytes()
    call(*run, data, *end)
    assert (folder / "dict.txt").read_bytes() == (data / "dict.txt").read_bytes()
    assert max(losses(folder)) == 3
    assert "another dictionary" in refused(*run, other, *end)
    for name in ("dict.txt", "data.json"):
        mine = tmp_path / f"with {name}" / name
        mine.parent.mkdir()
        mine.write_text("{}")
        assert "--save-dir" in refused(*run, data, *end[:-1], mine.parent)
        assert mine.read_text() == "{}"


def test_a_warm_up_longer_than_the_run_is_shortened(call, configs, data, tmp_path, capsys):
    folder = shutil.copytree(configs, tmp_path / "configs")
    for config in folder.glob("lra_*.yaml"):
        own = config.read_text().replace("warmup_updates: 2, total_num_update: 40", "warmup_updates: 10")
        config.write_text(own)
        for last, expected in ((3, "2"), (11, None)):
            call(TRAIN_LRA, config, data, "--gpus", 0, "--dry-run", "--max-update", last)
            found = capsys.readouterr()
            assert (f"--warmup-updates {expected} " in found.out) == (expected is not None)
            assert ("--warmup-updates" in found.err) == (expected is not None)


def test_other_dictionary(call, refused, data, uninterrupted, tmp_path):
    """The symbols and their order count, not how often each occurs."""
    other, checkpoint = shutil.copytree(data, tmp_path / "other"), uninterrupted / "checkpoint_best.pt"
    lines = (data / "dict.txt").read_text().splitlines(True)
    (other / "dict.txt").write_text("".join(line.split()[0] + " 7\n" for line in lines))
    assert "is a folder" not in refused(evaluate_lra, checkpoint, other, "--out", tmp_path / "no" / "x.json")
    assert "which is a folder" in refused(evaluate_lra, checkpoint, other, "--out", tmp_path)
    call(evaluate_lra, checkpoint, other, "--out", tmp_path / "found.json")
    (other / "dict.txt").write_text("".join(reversed(lines)))
    assert "was trained; give the folder with that dictionary" in refused(evaluate_lra, checkpoint, other)


def test_checkpoints_that_are_none_of_long_range_arena(refused, data, trained, tmp_path):
    sentence = refused(evaluate_lra, trained / "checkpoint_last.pt", data)
    assert "holds a transnormer_t1, which is no model of Long Range Arena" in sentence
    (tmp_path / "evil.pt").write_bytes(b"PK\x03\x04")
    assert "incomplete" in refused(evaluate_lra, tmp_path / "evil.pt", data)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--max-positions 32", "a sequence of 40 positions is longer than the 32"),
        ("--encoder-attention elu,nrom", "'nrom' is not an attention"),
        ("--warmup-updates 1", "--warmup-updates is 1 and the last update 40"),
        ("--pooling max", "--pooling is 'max'"),
    ],
)
def test_impossible_settings(flags, message, refused, configs, data, tmp_path):
    sentence = refused(TRAIN_LRA, configs / "lra_skyformer.yaml", data, "--gpus", 0, "--save-dir",
                       tmp_path / "run", *flags.split())  # fmt: skip
    assert message in sentence
    assert not list((tmp_path / "run").glob("*.pt"))


@pytest.mark.parametrize("plan", ["ell", "elu*3"])
def test_a_plan_that_the_preset_has_no_layers_for(refused, tmp_path, plan):
    """Found out in a dry run, which looks at no data."""
    config = ROOT / "configs" / "lra_skyformer" / "text.yaml"
    words = (config, tmp_path, "--gpus", 0, "--dry-run", "--encoder-attention", plan)
    assert "--encoder-attention" in refused(TRAIN_LRA, *words)
