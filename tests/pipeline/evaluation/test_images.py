"""Images from YAML to bits per dimension, samples and completions; resuming, checkpoints that do not fit."""

import json
from base64 import b64decode

import numpy as np
import pytest
import torch
from PIL import Image

from pipeline.evaluation import eval_images, pixels, sample_images
from pipeline.evaluation.evaluators import TrainedRun
from pipeline.training import train as train_lm
from tests.helpers.images import SMALL, write_images
from tests.helpers.two_processes import assert_two_train_as_one, of_recipe
from user_dir.tasks.image_data import open_image_data

TRAIN_IMAGES = "scripts/train_images.sh"
CONFIG = """
common: {seed: 1, log_format: json, log_interval: 1}
task: {_name: pixels, data: data/images/slopes}
criterion: {_name: pixel_likelihood}
dataset: {batch_size: 8, required_batch_size_multiple: 1, num_workers: 0}
distributed_training: {distributed_world_size: 1}
optimization: {max_update: 80, update_freq: [1], lr: [0.01], clip_norm: 0.0}
optimizer: {_name: radam, radam_clip_tensor: 1.0}
lr_scheduler: {_name: fixed}
checkpoint: {no_epoch_checkpoints: true}
"""


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    path = tmp_path_factory.mktemp("configs") / "slopes.yaml"
    path.write_text(f"{CONFIG}model: {json.dumps({'_name': 'pixel_linear', **SMALL})}\n")
    return path


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_images(tmp_path_factory.mktemp("data") / "slopes")


@pytest.fixture(scope="module")
def run(recipe, data, tmp_path_factory):
    return train_lm.train(recipe, data, train_lm.Machines(0), tmp_path_factory.mktemp("runs") / "a run")


@pytest.mark.slow
def test_bits_per_dimension_of_every_split(call, run, capsys):
    found = {}
    for splits in ("train,valid,test", "test"):
        call(eval_images, run / "checkpoint_last.pt", "--split", splits)
    for split in ("train", "valid", "test"):
        found[split] = json.loads((run / f"checkpoint_last.{split}.json").read_text())
    assert [found[split]["images"] for split in found] == [40, 9, 11]
    # Each byte is one of two levels, which a model that has learned the slope knows.
    assert 0.9 < found["test"]["bits_per_dimension"] < 2.0
    assert found["test"]["counted"] == 11 * 12 and found["test"]["updates"] == 80
    assert "bits per dimension on 11 images (test)" in capsys.readouterr().out
    call(eval_images, run / "checkpoint_last.pt", "--batch-size", 3, "--out", run / "small.json")
    small = json.loads((run / "small.json").read_text())["bits_per_dimension"]
    assert small == pytest.approx(found["test"]["bits_per_dimension"], rel=1e-6)


@pytest.mark.slow
def test_what_a_study_records(run, data, monkeypatch):
    images = open_image_data(data)
    device = torch.device("cpu")
    monkeypatch.setattr(pixels, "OF_TRAIN", 16)
    found = pixels.measure_run(TrainedRun(run, run / "checkpoint_last.pt", None, (), images, device))
    assert json.loads(json.dumps(found)) == found
    assert found["images"] == {"train": 16, "valid": 9, "test": 11}
    assert all(0.9 < bits < 2.0 for bits in found["bits_per_dimension"].values())
    assert found["bits_per_dimension"]["test"] < found["without_a_model"]["histogram"]
    shown = {
        name: np.frombuffer(b64decode(text), np.uint8).reshape(-1, 4, 3, 1)
        for name, text in found["pictures"].items()
    }
    true = images.images("test")[:10]
    assert (shown["test images"] == true).all() and shown["drawn"].shape == (10, 4, 3, 1)
    assert (shown["completed"][:, :2] == true[:, :2]).all() and (shown["completed"] != true).any()


def test_frequencies_of_levels(tmp_path):
    folder = write_images(tmp_path / "flat", levels=3, size=(1, 2, 1))
    for split, count in (("train", 7), ("test", 3)):
        levels = np.tile(np.array([2, 0], np.uint8), (count, 1))
        np.save(folder / f"{split}.images.npy", levels.reshape(-1, 1, 2, 1))
    bits = pixels.without_a_model(open_image_data(folder))
    assert bits["uniform"] == pytest.approx(np.log2(3))
    # One is added to each count: 8 of 10 at a place, and 9 of 20 at both.
    assert bits["histogram_by_place"] == pytest.approx(-np.log2(8 / 10))
    assert bits["histogram"] == pytest.approx(-np.log2(9 / 20))
    assert pixels.without_a_model(open_image_data(folder), given=1)["histogram"] == pytest.approx(
        -np.log2(0.8)
    )


@pytest.mark.slow
def test_samples_are_the_same_in_any_batch_and_completions_keep_what_is_given(call, run, data, tmp_path):
    checkpoint = run / "checkpoint_last.pt"
    for size, extra in ((7, []), (7, []), (2, []), (7, ["--recompute"])):  # the second replaces the first
        words = ["--count", 7, "--batch-size", size, "--out", tmp_path / f"{size}{len(extra)}.png", *extra]
        call(sample_images, checkpoint, *words)
    first, *others = (np.load(tmp_path / f"{name}.npy") for name in ("70", "20", "71"))
    assert first.shape == (7, 4, 3, 1) and first.dtype == np.uint8 and first.max() < 5
    assert all(np.array_equal(first, other) for other in others)
    call(sample_images, checkpoint, "--count", 4, "--complete", 0.5, "--out", tmp_path / "half.png")
    completed, true = np.load(tmp_path / "half.npy"), np.load(data / "test.images.npy")[:4]
    assert np.array_equal(completed[:, :2], true[:, :2]) and not np.array_equal(completed, true)
    picture = np.array(Image.open(tmp_path / "half.png"))
    scale = 64 // 4
    assert picture.shape == (scale * (4 * 6 + 2), scale * (3 * 5 + 2))
    # The third of a row is the original, on 256 levels of grey.
    assert np.array_equal(picture[scale * 2 : scale * 6 : scale, scale * 12 : scale * 15 : scale],
                          np.rint(true[0, :, :, 0] * 63.75))  # fmt: skip


@pytest.mark.slow
def test_a_killed_run_resumes_and_ends_as_if_nothing_had_happened(
    call, kill, recipe, data, run, tmp_path, capsys
):
    words = [recipe, data, "--gpus", 0, "--save-dir", tmp_path / "run"]
    kill(TRAIN_IMAGES, words, tmp_path / "run" / "train.log", '"num_updates": "12"')
    call(TRAIN_IMAGES, *words)
    assert "resuming from" in capsys.readouterr().out
    states = [
        torch.load(folder / "checkpoint_last.pt", weights_only=True)["model"]
        for folder in (run, tmp_path / "run")
    ]
    for name, value in states[0].items():
        torch.testing.assert_close(states[1][name], value, rtol=0, atol=0, msg=name)


@pytest.mark.slow
def test_two_processes_train_what_one_with_twice_the_accumulation_trains(call, recipe, data, tmp_path):
    assert_two_train_as_one(of_recipe(recipe, data), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--complete", "1.5"], "--complete is 1.5; it must be a share of the rows between 0 and 1"),
        (["--complete", "0.05"], "--complete 0.05 gives 0 of 4 rows; it must give some and leave some"),
        (["--complete", "0.5", "--count", "12"], "--count is 12, but"),
        (["--batch-size", "0"], "'0' is not a whole number of 1 or more"),
        (["--seed", "-1"], "--seed is -1"),
        (["--out", "/nowhere/x.png"], "cannot write /nowhere/x.png"),
    ],
)
def test_samples_that_cannot_be(refused, run, words, sentence):
    assert sentence in refused(sample_images, run / "checkpoint_last.pt", *words)


@pytest.mark.slow
def test_checkpoints_that_do_not_fit(refused, run, trained, tmp_path):
    other = write_images(tmp_path / "other", levels=6)
    checkpoint = run / "checkpoint_last.pt"
    assert "holds images of 4 x 3 x 1 of 6 levels, but" in refused(eval_images, checkpoint, other)
    assert "has no split dev" in refused(eval_images, checkpoint, "--split", "dev")
    text = trained / "checkpoint_last.pt"
    for command, tasks in ((eval_images, "pixels or image_classification"), (sample_images, "pixels")):
        sentence = refused(command, text)
        assert f"holds a model of the task language_modeling, not of {tasks}" in sentence
