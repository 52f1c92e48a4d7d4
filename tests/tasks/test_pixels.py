"""The task of pixels: images as tokens, their shape in the configuration, and bad data."""

import json

import numpy as np
import pytest
import torch

from tests.helpers.images import pixel_task, write_images
from user_dir.errors import UserError


@pytest.fixture
def folder(tmp_path):
    return write_images(tmp_path / "images", size=(4, 3, 2))


def test_sources_are_shifted_targets_of_all_bytes(folder):
    task = pixel_task(folder)
    task.load_dataset("train")
    data = task.dataset("train")
    images = np.load(folder / "train.images.npy")
    item = data[7]
    # Row by row, the channels of a pixel side by side.
    assert (item["target"] - 4).tolist() == images[7].flatten().tolist()
    assert (item["target"][2 * (1 * 3 + 2) + 1] - 4) == images[7, 1, 2, 1]
    assert item["source"].tolist() == [task.dictionary.eos(), *item["target"][:-1].tolist()]
    batch = data.collater([data[i] for i in range(5)])
    assert batch["ntokens"] == 5 * 24 == int(batch["target"].ne(task.dictionary.pad()).sum())
    assert task.dictionary[4] == "0" and len(task.dictionary) == 9
    assert task.cfg.tokens_per_sample == 24
    task.note_data(task.cfg)
    assert (task.cfg.levels, task.cfg.height, task.cfg.width, task.cfg.channels) == (5, 4, 3, 2)


def test_given_bytes_do_not_count(folder):
    task = pixel_task(folder, given_pixels=3)
    task.load_dataset("valid")
    data = task.dataset("valid")
    batch = data.collater([data[0], data[1]])
    assert batch["target"][:, :3].eq(1).all() and batch["ntokens"] == 2 * 21 == int(
        batch["target"].ne(1).sum()
    )
    images = torch.from_numpy(np.load(folder / "valid.images.npy")).long()
    assert torch.equal(batch["net_input"]["src_tokens"][:, 1:] - 4, images[:2].flatten(1)[:, :-1])


def test_training_is_shuffled_and_evaluation_is_not(folder):
    task = pixel_task(folder)
    for split in ("train", "test"):
        task.load_dataset(split)
    assert not np.array_equal(task.dataset("train").ordered_indices(), np.arange(40))
    assert np.array_equal(task.dataset("test").ordered_indices(), np.arange(11))


def test_a_checkpoints_shape_is_kept_where_its_data_are_gone(folder, tmp_path):
    shape = {"levels": 5, "height": 4, "width": 3, "channels": 2}
    assert pixel_task(tmp_path / "gone", **shape).shape == pixel_task(folder).shape
    with pytest.raises(
        UserError, match="holds images of 4 x 3 x 2 of 5 levels, but .* 4 x 3 x 2 of 6 levels"
    ):
        pixel_task(folder, **{**shape, "levels": 6})
    with pytest.raises(UserError, match="no data folder"):
        pixel_task(tmp_path / "gone", **{**shape, "levels": None})


@pytest.mark.parametrize("given", [-1, 24])
def test_given_bytes_that_cannot_be(folder, given):
    with pytest.raises(UserError, match=f"--given-pixels is {given}; it must be from 0 to 23"):
        pixel_task(folder, given_pixels=given)
    with pytest.raises(UserError, match="--tokens-per-sample is 9, but an image has 24 bytes"):
        pixel_task(folder, tokens_per_sample=9)


def spoil(name, change):
    def do(folder):
        path = folder / name
        np.save(path, change(np.load(path)))

    return do


def without(key):
    def rewrite(folder):
        manifest = json.loads((folder / "preparation.json").read_text())
        del manifest[key]
        (folder / "preparation.json").write_text(json.dumps(manifest))

    return rewrite


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (spoil("test.images.npy", lambda x: x + 9), "has the level 1[0-9]; expected 0 to 4"),
        (spoil("test.images.npy", lambda x: x / 2), "holds float64 of shape .*; expected uint8"),
        (spoil("test.images.npy", lambda x: x[:, 1:]), r"shape \(11, 3, 3, 2\); expected uint8"),
        (spoil("test.images.npy", lambda x: x[:0]), "holds no image"),
        (lambda folder: (folder / "test.images.npy").unlink(), "has no test.images.npy"),
        (lambda folder: (folder / "test.images.npy").write_bytes(b"\x93NUMPY"), "is damaged"),
        (lambda folder: (folder / "preparation.json").write_text("{"), "preparation.json is damaged"),
        (without("height"), "holds no prepared images"),
        (without("splits"), "holds no prepared images"),
        (lambda folder: (folder / "preparation.json").unlink(), "holds no prepared images"),
    ],
)
def test_bad_data(folder, damage, message):
    damage(folder)
    with pytest.raises(UserError, match=message):
        pixel_task(folder).load_dataset("test")
