"""Models of images: bits per dimension, accuracy, samples and completions; data that do not fit."""

import json
import shutil
from base64 import b64decode

import numpy as np
import pytest
import torch
from PIL import Image

from lab.measure import TrainedRun, accuracy, pixels
from lab.run import kinds
from tests.helpers import tiny
from tests.helpers.images import write_images
from user_dir.tasks.image_data import open_image_data

EVAL_IMAGES = "scripts/lab.sh evaluate images"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return tiny.trained("pixels", tmp_path_factory)


@pytest.fixture(scope="module")
def vit(tmp_path_factory):
    return tiny.trained("image_classification", tmp_path_factory)


@torch.no_grad()
def bits_by_hand(made, split):
    """From the shares of a mixture of logistics between the edges of five levels, which lie from -1 to 1."""
    checkpoint = kinds.load_image_model(made.run / "checkpoint_last.pt", made.data, "pixels")
    levels = torch.from_numpy(np.load(made.data / f"{split}.images.npy").astype(np.int64)).flatten(1)
    read = levels + checkpoint.model.first_level
    read = torch.nn.functional.pad(read[:, :-1], (1, 0), value=checkpoint.task.dictionary.eos())
    logits, means, scales = checkpoint.model(read)[0].double().chunk(3, -1)
    edges = torch.tensor([-torch.inf, -0.75, -0.25, 0.25, 0.75, torch.inf]).double()
    below, above = (
        torch.sigmoid((edges[levels + side][..., None] - means) / scales.exp()) for side in (0, 1)
    )
    return -((above - below) * logits.softmax(-1)).sum(-1).log2().mean().item()


@pytest.mark.slow
def test_bits_per_dimension_of_every_split(call, refused, made, tmp_path, capsys):
    found, run = {}, shutil.copytree(made.run, tmp_path / "run")
    for splits in ("train,valid,test", "test"):
        call(EVAL_IMAGES, run / "checkpoint_last.pt", "--split", splits)
    for split in ("train", "valid", "test"):
        found[split] = json.loads((run / f"checkpoint_last.{split}.json").read_text())
    assert [found[split]["images"] for split in found] == [40, 9, 11]
    for split, one in found.items():
        assert one["bits_per_dimension"] == pytest.approx(bits_by_hand(made, split), rel=1e-5)
    # Each byte is one of two levels, which a model that has learned the slope knows.
    assert 0.9 < found["test"]["bits_per_dimension"] < 2.0
    assert found["test"]["counted"] == 11 * 12 and found["test"]["updates"] == 80
    assert "bits per dimension on 11 images (test)" in capsys.readouterr().out
    call(EVAL_IMAGES, run / "checkpoint_last.pt", "--batch-size", 3, "--out", run / "small.json")
    other = shutil.copytree(made.data, tmp_path / "other")
    assert f"instead of {other}; move it" in refused(EVAL_IMAGES, run / "checkpoint_last.pt", other)
    small = json.loads((run / "small.json").read_text())["bits_per_dimension"]
    assert small == pytest.approx(found["test"]["bits_per_dimension"], rel=1e-6)


@pytest.mark.slow
def test_what_a_study_records(made, monkeypatch):
    images = open_image_data(made.data)
    device = torch.device("cpu")
    monkeypatch.setattr(pixels, "OF_TRAIN", 16)
    found = pixels.measure_run(TrainedRun(made.run, made.run / "checkpoint_last.pt", (), images, device))
    assert json.loads(json.dumps(found)) == found
    assert found["images"] == {"train": 16, "valid": 9, "test": 11}
    bits = found["bits_per_dimension"]
    assert 0.9 < bits.pop("train") < 2.0
    expected = {split: bits_by_hand(made, split) for split in ("valid", "test")}
    assert bits == pytest.approx(expected, rel=1e-5)
    assert bits["test"] < found["without_a_model"]["histogram"]
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
def test_samples_are_the_same_in_any_batch_and_completions_keep_what_is_given(call, made, tmp_path):
    checkpoint = made.run / "checkpoint_last.pt"
    for size, extra in ((7, []), (7, []), (2, []), (7, ["--recompute"])):  # the second replaces the first
        words = ["--count", 7, "--batch-size", size, "--out", tmp_path / f"{size}{len(extra)}.png", *extra]
        call(pixels, checkpoint, *words)
    first, *others = (np.load(tmp_path / f"{name}.npy") for name in ("70", "20", "71"))
    assert first.shape == (7, 4, 3, 1) and first.dtype == np.uint8 and first.max() < 5
    assert all(np.array_equal(first, other) for other in others)
    call(pixels, checkpoint, "--count", 4, "--complete", 0.5, "--out", tmp_path / "half.png")
    completed, true = np.load(tmp_path / "half.npy"), np.load(made.data / "test.images.npy")[:4]
    assert np.array_equal(completed[:, :2], true[:, :2]) and not np.array_equal(completed, true)
    picture = np.array(Image.open(tmp_path / "half.png"))
    scale = 64 // 4
    assert picture.shape == (scale * (4 * 6 + 2), scale * (3 * 5 + 2))
    # The third of a row is the original, on 256 levels of grey.
    assert np.array_equal(
        picture[scale * 2 : scale * 6 : scale, scale * 12 : scale * 15 : scale],
        np.rint(true[0, :, :, 0] * 63.75),
    )


@pytest.mark.slow
def test_drawn_images_begin_with_what_training_gives(call, made, tmp_path, monkeypatch):
    """A model trained with --given-pixels has learned nothing of these bytes."""
    images, load = open_image_data(made.data), pixels.load_image_model

    def given_five(*words):
        checkpoint = load(*words)
        checkpoint.task.cfg.given_pixels = 5
        return checkpoint

    for module in (pixels, kinds):
        monkeypatch.setattr(module, "load_image_model", given_five)
    call(pixels, made.run / "checkpoint_last.pt", "--count", 4, "--out", tmp_path / "given.png")
    drawn, true = np.load(tmp_path / "given.npy").reshape(4, -1), images.images("test")[:4].reshape(4, -1)
    assert (drawn[:, :5] == true[:, :5]).all() and (drawn != true).any()
    checkpoint = given_five(made.run / "checkpoint_last.pt", made.data, "pixels")
    found = pixels.pictures(checkpoint, images, torch.device("cpu"))["drawn"]
    shown = np.frombuffer(b64decode(found), np.uint8).reshape(10, -1)
    assert (shown[:, :5] == images.images("test")[:10].reshape(10, -1)[:, :5]).all()


@pytest.mark.slow
def test_accuracy(call, vit, tmp_path, capsys):
    for size in (4, 11):
        words = ["--batch-size", size, "--out", tmp_path / f"{size}.json"]
        call(EVAL_IMAGES, vit.run / "checkpoint_last.pt", *words)
    first, second = (json.loads((tmp_path / f"{size}.json").read_text()) for size in (4, 11))
    assert (first["correct"], first["examples"]) == (second["correct"], 11)
    assert first["accuracy"] == pytest.approx(100 * first["correct"] / 11)
    assert f"{first['accuracy']:.2f} % of 11 images right (test)" in capsys.readouterr().out


@pytest.mark.slow
def test_images_of_train_are_evaluated_as_they_are(vit):
    checkpoint = kinds.load_image_model(vit.run / "checkpoint_last.pt", None, "image_classification")
    checkpoint.task.load_dataset("train")
    shown = np.stack([checkpoint.task.dataset("train")[i]["image"] for i in range(40)])
    assert np.array_equal(shown, np.load(vit.data / "train.images.npy"))


@pytest.mark.slow
def test_what_a_study_records_of_a_classifier(vit):
    device, path = torch.device("cpu"), vit.run / "checkpoint_last.pt"
    found = accuracy.measure_images(TrainedRun(vit.run, path, (), open_image_data(vit.data), device))
    assert (
        found["split"] == "test"
        and found["training_images"] == 40
        and found["attention"] == "softmax,linformer"
    )
    assert found["correct"] == pytest.approx(found["accuracy"] * 11 / 100) and found["exponents"] == {}
    assert found["gradient_norm"] > 0 and found["largest_inverse_loss_scale"] is None
    labels = {split: np.load(vit.data / f"{split}.label.npy") for split in ("train", "test")}
    likely = max(range(10), key=labels["train"].tolist().count)
    assert found["most_frequent_class"] == pytest.approx(100 * labels["test"].tolist().count(likely) / 11)


@pytest.mark.slow
def test_images_of_another_shape(refused, vit, tmp_path):
    other = write_images(tmp_path / "wide", size=(4, 6, 1))
    words = (vit.config, other, "--gpus", 0, "--save-dir", tmp_path / "run")
    sentence = refused(vit.script, *words, "--finetune-from-model", vit.run / "checkpoint_last.pt")
    assert "holds images of 4 x 6 x 1 of 5 levels, but" in sentence and not (tmp_path / "run").exists()
    sentence = refused(pixels, vit.run / "checkpoint_last.pt")
    assert "holds a model of the task image_classification, not of pixels" in sentence
    words = (vit.config, vit.data, "--gpus", 0, "--save-dir", vit.run)
    assert "holds a run whose patch_size is 2, not 1" in refused(vit.script, *words, "--patch-size", 1)


def test_an_image_is_drawn_by_its_number_whatever_the_batch():
    whole = pixels.uniforms(3, range(4), 5)
    assert whole.shape == (4, 5, 2) and len(whole.unique()) == 40
    assert torch.equal(pixels.uniforms(3, range(2, 4), 5), whole[2:])
    assert not torch.equal(pixels.uniforms(4, range(4), 5), whole)
    assert list(pixels.batches(5, 2)) == [range(0, 2), range(2, 4), range(4, 5)]
