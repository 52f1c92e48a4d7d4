"""The task `image_classification`: batches, augmentation, exact accuracy, and bad input."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fairseq.logging import metrics
from fairseq.models import MODEL_REGISTRY

from lab.measure.accuracy import count_correct
from tests.helpers.images import classification_task, write_images
from user_dir.criterions import ClassificationCriterion
from user_dir.errors import UserError
from user_dir.tasks.augmentation import AUGMENTATIONS, _crop


@pytest.fixture
def folder(tmp_path):
    return write_images(tmp_path / "slopes")


def batches(task, split, epoch=1):
    task.load_dataset(split)
    iterator = task.get_batch_iterator(task.dataset(split), max_sentences=5, seed=7, epoch=epoch)
    return list(iterator.next_epoch_itr(shuffle=False))


class Guesser(torch.nn.Module):
    """Guesses the class of an image from its first level."""

    def forward(self, images):
        return torch.nn.functional.one_hot(images[:, 0, 0, 0].long(), 10).float()

    def max_positions(self):
        return None


def test_batches_hold_every_image_once_with_its_class(folder):
    task = classification_task(folder)
    for split in ("train", "test"):
        arrays = [np.load(folder / f"{split}.{what}.npy") for what in ("images", "label")]
        found = batches(task, split)
        ids = torch.cat([batch["id"] for batch in found]).tolist()
        assert sorted(ids) == list(range(len(arrays[0]))) and (ids != sorted(ids)) is (split == "train")
        images = torch.cat([batch["net_input"]["images"] for batch in found])
        targets = torch.cat([batch["target"] for batch in found])
        assert np.array_equal(images, arrays[0][ids]) and np.array_equal(targets, arrays[1][ids])
        assert sum(batch["ntokens"] for batch in found) == len(ids) * 12
    assert task.dataset("test").collater([]) == {}


def test_accuracy_is_that_of_all_images_with_an_incomplete_last_batch(folder):
    task, criterion = classification_task(folder), ClassificationCriterion(SimpleNamespace())
    outputs = [criterion(Guesser(), batch)[2] for batch in batches(task, "test")]
    assert [output["nsentences"] for output in outputs] == [5, 5, 1]
    images, labels = (np.load(folder / f"test.{what}.npy") for what in ("images", "label"))
    right = int((images[:, 0, 0, 0] == labels).sum())
    assert 0 < right < 11
    with metrics.aggregate() as logged:
        for output in outputs:
            criterion.reduce_metrics([output])
    assert logged.get_smoothed_values()["accuracy"] == pytest.approx(100 * right / 11, abs=1e-4)
    found = count_correct(Guesser(), task, "test", 4, torch.device("cpu"))
    assert (found["correct"], found["examples"]) == (right, 11)
    assert found["accuracy"] == pytest.approx(100 * right / 11)


def test_augmentation_depends_on_seed_epoch_and_number_and_spares_the_other_splits(tmp_path):
    folder = write_images(tmp_path / "wide", 256, (16, 16, 3))
    task = classification_task(folder, augmentation="crop-flip")
    first, again, second = (batches(task, "train", epoch)[0] for epoch in (1, 1, 2))
    assert torch.equal(first["net_input"]["images"], again["net_input"]["images"])
    data = task.dataset("train")
    views = []
    for epoch in (1, 2):
        data.set_epoch(epoch)
        views.append(data[3]["image"])
    assert not torch.equal(*views) and first["id"].tolist() != second["id"].tolist()
    other = classification_task(folder, augmentation="crop-flip")
    other.cfg.seed = 2
    other.load_dataset("train")
    assert not torch.equal(other.dataset("train")[3]["image"], views[0])
    plain = torch.cat([batch["net_input"]["images"] for batch in batches(task, "test")])
    assert np.array_equal(plain, np.load(folder / "test.images.npy"))


def test_augmentations_keep_size_and_levels():
    image = torch.arange(16 * 24 * 3).view(16, 24, 3).remainder(200).to(torch.uint8)
    for name, augment in AUGMENTATIONS.items():
        found = [augment(image, np.random.default_rng(seed)) for seed in range(20)]
        assert all(x.shape == image.shape and x.dtype == torch.uint8 and x.max() < 200 for x in found)
        assert (len({x.numpy().tobytes() for x in found}) > 10) is (name != "none")
    grey = torch.full((16, 24, 3), 77, dtype=torch.uint8)
    for seed in range(20):  # every crop of one colour has that colour
        assert torch.equal(AUGMENTATIONS["crop-flip"](grey, np.random.default_rng(seed)), grey)
        moved = AUGMENTATIONS["shift-flip"](grey, np.random.default_rng(seed))
        assert set(moved.unique().tolist()) <= {0, 77} and moved.eq(77).sum() >= 14 * 21 * 3


class Drawn:
    """A generator that gives these numbers: the whole range of integers, its end, and so on."""

    def __init__(self, uniforms, flips=False):
        self.uniforms, self.flips = iter(uniforms), flips
        self.ranges = []

    def uniform(self, low, high):
        return low + next(self.uniforms) * (high - low)

    def integers(self, low, high):
        self.ranges.append((low, high))
        return high - 1

    def random(self):
        return 0.0 if self.flips else 0.5


def test_a_crop_by_hand():
    """A quarter of 40 x 90 pixels with four thirds as wide as high: 26 by 35, at the lower right."""
    share = (0.25 - 0.08) / 0.92
    assert _crop(40, 90, Drawn([share, 1.0])) == (14, 55, 26, 35)
    assert _crop(40, 90, Drawn([share, 0.0])) == (5, 64, 35, 26)
    assert _crop(40, 90, Drawn([share, 0.5])) == (10, 60, 30, 30)  # ratios are drawn by their logarithms
    assert _crop(40, 90, Drawn([1.0, 0.5] * 10)) == (0, 0, 40, 90)  # 60 x 60 never fits


@pytest.mark.parametrize("flips", [False, True])
def test_a_shift_by_hand(flips):
    """Of 8 x 16 pixels by up to 1 and 2: here to the upper left, with zeros behind."""
    image = torch.arange(8 * 16, dtype=torch.uint8).view(8, 16, 1)
    drawn = Drawn([], flips)
    found = AUGMENTATIONS["shift-flip"](image, drawn)
    assert drawn.ranges == [(0, 3), (0, 5)]
    expected = torch.zeros(8, 16, 1, dtype=torch.uint8)
    expected[:7, :14] = image[1:, 2:]
    assert torch.equal(found, expected.flip(1) if flips else expected)


def test_a_checkpoint_knows_shape_and_classes(folder, tmp_path):
    task = classification_task(folder)
    task.note_data(task.cfg)
    kept = {name: getattr(task.cfg, name) for name in ("levels", "height", "width", "channels", "classes")}
    assert kept == {"levels": 5, "height": 4, "width": 3, "channels": 1, "classes": 10}
    gone = classification_task(tmp_path / "gone", **kept)
    assert (gone.shape, gone.classes) == (task.shape, 10)
    with pytest.raises(UserError, match=r"holds images of 10 classes, but the settings .* are for 2"):
        classification_task(folder, classes=2)
    with pytest.raises(UserError, match=r"4 x 3 x 1 of 5 levels, but .* 4 x 4 x 1 of 5"):
        classification_task(folder, **{**kept, "width": 4})


def test_labels_that_cannot_be(folder):
    task = classification_task(folder)
    labels = np.load(folder / "train.label.npy")
    np.save(folder / "train.label.npy", labels[:-1])
    with pytest.raises(UserError, match="train of .* has 39 labels for 40 rows"):
        task.load_dataset("train")
    np.save(folder / "train.label.npy", np.where(np.arange(40) == 7, 10, labels))
    with pytest.raises(
        UserError, match="label 10 of row 7 in train.label.npy is out of range: slopes has classes 0 to 9"
    ):
        task.load_dataset("train")
    (folder / "train.label.npy").unlink()
    with pytest.raises(UserError, match=r"has no train.label.npy; prepare it again with data-prep/images.sh"):
        task.load_dataset("train")
    manifest = json.loads((folder / "preparation.json").read_text())
    (folder / "preparation.json").write_text(json.dumps({**manifest, "classes": []}))
    with pytest.raises(UserError, match="lacks class names"):
        classification_task(folder)


def test_settings_that_cannot_be(folder):
    with pytest.raises(UserError, match="--augmentation is 'crop'; choose one of none, shift-flip"):
        classification_task(folder, augmentation="crop")
    with pytest.raises(UserError, match="give --task image_classification"):
        MODEL_REGISTRY["vit"].build_model(SimpleNamespace(patch_size=2), SimpleNamespace())
