"""train_vit.sh: from YAML to checkpoints, kill and resume, two processes, what does not fit."""

import json
import sys

import numpy as np
import pytest
import torch

from pipeline.evaluation import eval_images, image_classification, sample_images
from pipeline.evaluation.evaluators import TrainedRun
from pipeline.files import ROOT
from pipeline.training import train as train_lm
from pipeline.training.figures import read_log
from pipeline.training.recipe import read_experiment
from tests.helpers import forked
from tests.helpers.images import write_images
from tests.helpers.logs import wait_for
from tests.helpers.two_processes import assert_two_train_as_one, of_recipe
from user_dir.tasks.image_data import open_image_data

TRAIN_VIT = "scripts/train_vit.sh"
TRAIN_IMAGES = "scripts/train_images.sh"
CONFIG = """
common: {seed: 1, log_format: json, log_interval: 1}
task: {_name: image_classification, data: data/images/slopes, augmentation: shift-flip}
criterion: {_name: classification}
dataset: {batch_size: 8, required_batch_size_multiple: 1, num_workers: 0}
distributed_training: {distributed_world_size: 1}
optimization: {max_update: 12, update_freq: [1], lr: [0.01], clip_norm: 0.0}
optimizer: {_name: adam}
lr_scheduler: {_name: fixed}
checkpoint: {no_epoch_checkpoints: true, save_interval_updates: 3, keep_interval_updates: 1,
  best_checkpoint_metric: accuracy, maximize_best_checkpoint_metric: true}
model: {_name: vit, patch_size: 2, encoder_attention: "softmax,linformer", linformer_rank: 3,
  encoder_layers: 2, encoder_embed_dim: 8, encoder_attention_heads: 2, encoder_ffn_embed_dim: 16}
"""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    path = tmp_path_factory.mktemp("configs") / "slopes.yaml"
    path.write_text(CONFIG)
    return path


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_images(tmp_path_factory.mktemp("data") / "slopes", size=(4, 4, 1))


@pytest.fixture(scope="module")
def run(recipe, data, tmp_path_factory):
    return train_lm.train(recipe, data, train_lm.Machines(0), tmp_path_factory.mktemp("runs") / "a run")


def weights(folder):
    return torch.load(folder / "checkpoint_last.pt", weights_only=True)["model"]


def test_the_log_has_exact_accuracies_and_the_best_checkpoint_the_best_of_them(run):
    records = read_log(run / "train.log")
    assert [record["num_updates"] for record in records["train_inner"]] == list(range(1, 13))
    found = [record["valid_accuracy"] for record in records["valid"]]
    assert found and all(abs(9 * share / 100 - round(9 * share / 100)) < 1e-4 for share in found)
    best = torch.load(run / "checkpoint_best.pt", weights_only=True)
    assert best["extra_state"]["best"] == max(found)


def test_a_checkpoint_is_evaluated(call, run, capsys):
    for size in (4, 11):
        words = ["--batch-size", size, "--out", run / f"{size}.json"]
        call(eval_images, run / "checkpoint_last.pt", *words)
    first, second = (json.loads((run / f"{size}.json").read_text()) for size in (4, 11))
    assert (first["correct"], first["examples"]) == (second["correct"], 11)
    assert first["accuracy"] == pytest.approx(100 * first["correct"] / 11)
    assert f"{first['accuracy']:.2f} % of 11 images right (test)" in capsys.readouterr().out


def test_what_a_study_records(run, data):
    device, path = torch.device("cpu"), run / "checkpoint_last.pt"
    found = image_classification.measure_run(TrainedRun(run, path, None, (), open_image_data(data), device))
    assert (
        found["split"] == "test"
        and found["training_images"] == 40
        and found["attention"] == "softmax,linformer"
    )
    assert found["correct"] == pytest.approx(found["accuracy"] * 11 / 100) and found["exponents"] == {}
    assert found["gradient_norm"] > 0 and found["largest_inverse_loss_scale"] is None
    labels = {split: np.load(data / f"{split}.label.npy") for split in ("train", "test")}
    likely = max(range(10), key=labels["train"].tolist().count)
    assert found["most_frequent_class"] == pytest.approx(100 * labels["test"].tolist().count(likely) / 11)


def test_a_killed_run_resumes_and_ends_as_if_nothing_had_happened(run, recipe, data, tmp_path):
    flags = ["--user-dir", ROOT / "user_dir", *read_experiment(recipe).flags(), "--cpu", "--update-freq", "1"]
    command = [sys.executable, "-m", "fairseq_cli.train", data, *flags, "--save-dir", tmp_path]
    killed = forked.start(command)
    wait_for('"num_updates": "8"', killed.logs[0], killed.process.is_alive)
    killed.process.kill()
    assert killed.wait().returncode == -9
    done = forked.run(command, check=True).stdout
    assert "Loaded checkpoint" in done and '"num_updates": "5"' not in done
    for name, value in weights(run).items():
        torch.testing.assert_close(weights(tmp_path)[name], value, rtol=0, atol=0, msg=name)


def test_two_processes_train_what_one_with_twice_the_accumulation_trains(recipe, data, tmp_path):
    assert_two_train_as_one(of_recipe(recipe, data), tmp_path)


def test_what_does_not_fit(call, refused, recipe, data, run, trained, tmp_path):
    assert "train it with scripts/train_vit.sh" in refused(TRAIN_IMAGES, recipe, data)
    sentence = refused(sample_images, run / "checkpoint_last.pt")
    assert "holds a model of the task image_classification, not of pixels" in sentence
    words = [recipe, data, "--gpus", 0, "--save-dir", tmp_path / "run"]
    start = ["--finetune-from-model", trained / "checkpoint_last.pt"]
    sentence = refused(TRAIN_VIT, *words, *start)
    assert "holds a model of the task language_modeling, not of image_classification" in sentence
    other = write_images(tmp_path / "wide", size=(4, 6, 1))
    start = ["--finetune-from-model", run / "checkpoint_last.pt"]
    sentence = refused(TRAIN_VIT, recipe, other, *words[2:], *start)
    assert "holds images of 4 x 6 x 1 of 5 levels, but" in sentence
    assert not (tmp_path / "run").exists()
    call(TRAIN_VIT, recipe, "--dry-run", "--encoder-attention", "norm")
    sentence = refused(TRAIN_VIT, recipe, data, "--gpus", 0, "--save-dir", run, "--patch-size", 1)
    assert "holds a run whose patch_size is 2, not 1" in sentence
