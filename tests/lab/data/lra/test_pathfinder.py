"""Pathfinder's generator: the statistics of the original's images, discs that agree with the label."""

import numpy as np
import pytest
from PIL import Image
from scipy import stats

from lab.data.lra import pathfinder
from lab.data.lra.pathfinder import SETTINGS, dilate, room_for


def sample_images(samples, side):
    folder = samples / f"pathfinder{side}" / "curv_contour_length_14" / "imgs"
    return np.stack([np.asarray(Image.open(path)) for path in sorted(folder.rglob("*.png"))])


@pytest.fixture(scope="module")
def drawn():
    """400 images of 32 x 32."""
    blocks = [pathfinder.draw_block(32, 42, number) for number in range(2)]
    return {key: np.concatenate([block[key] for block in blocks]) for key in blocks[0]}


def test_small_images_have_the_published_statistics(drawn):
    images, means = drawn["images"], drawn["images"].mean(axis=(1, 2))
    assert images.shape == (400, 32, 32) and images.dtype == np.uint8
    assert (images == 0).mean() == pytest.approx(0.66, abs=0.01)
    assert means.mean() == pytest.approx(20.1, abs=0.4)
    assert means.std() == pytest.approx(2.0, abs=0.3)
    assert drawn["labels"].mean() == pytest.approx(0.5, abs=0.08)
    assert (images.min(axis=(1, 2)) == 0).all() and (images.max(axis=(1, 2)) == 255).all()


def test_small_images_are_like_the_originals(drawn, samples):
    originals = sample_images(samples, 32)
    for measure in (
        lambda images: images.mean(axis=(1, 2)),
        lambda images: (images == 0).sum(axis=(1, 2)),
        lambda images: (images > 60).sum(axis=(1, 2)),
    ):
        assert stats.ks_2samp(measure(drawn["images"]), measure(originals)).pvalue > 1e-3
    here, there = ((images > 60).mean(axis=0) for images in (drawn["images"], originals))
    for axis in (0, 1):
        assert np.abs(here.mean(axis) - there.mean(axis)).max() < 0.025


def test_large_images_have_the_published_statistics(monkeypatch, samples):
    monkeypatch.setattr(pathfinder, "BLOCK", 12)
    images = pathfinder.draw_block(128, 42, 0)["images"]
    assert (images == 0).mean() == pytest.approx(0.863, abs=0.004)
    assert images.mean() == pytest.approx(7.9, abs=0.3)
    lit = (images > 60).sum(axis=(1, 2))
    assert stats.ks_2samp(lit, (sample_images(samples, 128) > 60).sum(axis=(1, 2))).pvalue > 1e-3


def test_attempts_an_image_are_as_many_as_the_originals():
    room, random = room_for(32, 1), np.random.default_rng(3)
    attempts = 40_000
    accepted = len(pathfinder._attempt_contours(room, attempts, random).places)
    assert attempts / accepted == pytest.approx(300, rel=0.25)


def test_discs_lie_at_the_ends_of_one_contour_or_of_two():
    setting, room = SETTINGS[32], room_for(32, 1)
    scenes = pathfinder.draw_contours(room, 4, np.random.default_rng(0))
    for image in range(4):
        for start in (0, 1):
            for same in (False, True):
                picture = pathfinder._picture(room, scenes, [[]] * 4, image, start, same)
                end = start if same else 1 - start
                for place in (scenes.places[image, start, 0], scenes.places[image, end, -1]):
                    y, x = np.array(divmod(int(place), room.width)) - room.frame
                    around = picture[max(0, y - 1) : y + 2, max(0, x - 1) : x + 2]
                    assert np.median(around) >= 100, (image, start, same)
    assert setting.segments == scenes.places.shape[2] == 14


def test_one_start_is_near_the_middle_and_the_other_at_the_distance():
    room = room_for(32, 1)
    scenes = pathfinder.draw_contours(room, 50, np.random.default_rng(1))
    starts = np.stack(np.divmod(scenes.places[:, :, 0], room.width), axis=-1) - room.frame
    assert (abs(starts[:, 0] - 15.5) <= 4).all()
    distances = np.linalg.norm(starts[:, 0] - starts[:, 1], axis=1)
    assert (abs(distances - 7) < 1).all()


def test_segments_of_contours_keep_their_distance():
    """No two masks of segments that are in the occupancy add up to 1.8 times full."""
    room = room_for(32, 1)
    scenes = pathfinder.draw_contours(room, 20, np.random.default_rng(2))
    for places, kinds in zip(scenes.places, scenes.kinds, strict=True):
        masks = []
        for place, kind in zip(places.reshape(-1), kinds.reshape(-1), strict=True):
            canvas = np.zeros(room.width**2, np.int64)
            canvas[place + room.mask_stamps.offsets[kind]] = room.mask_stamps.values[kind]
            masks.append(canvas)
        segments = places.shape[1]
        for one in range(2 * segments):
            for other in range(one):
                contours, numbers = zip(divmod(one, segments), divmod(other, segments), strict=True)
                adjacent = abs(numbers[0] - numbers[1]) <= 1
                if not adjacent and min(numbers) > 0:
                    assert (masks[one] + masks[other]).max() < 459, (contours, numbers)


def test_dilation_by_a_disc():
    picture = np.zeros((7, 7), np.uint8)
    picture[3, 3] = 9
    assert dilate(picture, 1).sum() == 9 * 5 and dilate(picture, 2).sum() == 9 * 13
    corner = np.zeros((3, 3), np.uint8)
    corner[0, 0] = 4
    assert dilate(corner, 1).tolist() == [[4, 4, 0], [4, 0, 0], [0, 0, 0]]
