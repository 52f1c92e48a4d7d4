"""NumPy's files: the bytes of `np.save`; a full disk is an error with its number."""

import errno

import numpy as np
import pytest

from lab.data.lra.writing import write_pixels
from lab.data.preparation import save_array

IMAGES = np.random.default_rng(0).integers(0, 256, (40, 5, 5), np.uint8)


@pytest.mark.parametrize(
    "array", [IMAGES, IMAGES[::2, :, 1:], IMAGES.transpose(2, 0, 1), np.arange(9), np.empty((0, 3), np.int64)]
)
def test_same_bytes(tmp_path, array):
    save_array(tmp_path / "ours.npy", array)
    np.save(tmp_path / "theirs.npy", np.ascontiguousarray(array))
    assert (tmp_path / "ours.npy").read_bytes() == (tmp_path / "theirs.npy").read_bytes()


def test_pixels(tmp_path):
    images = iter(enumerate(IMAGES))
    assert write_pixels(tmp_path, "train", 30, images, 25).labels == list(range(30))
    assert next(images)[0] == 30
    assert np.array_equal(np.load(tmp_path / "train.pixels.npy"), IMAGES[:30].reshape(30, 25))
    assert np.load(tmp_path / "train.label.npy").dtype == np.int64


@pytest.mark.parametrize("name", ["train.pixels.npy", "train.label.npy"])
def test_full_disk(tmp_path, name):
    (tmp_path / name).symlink_to("/dev/full")
    with pytest.raises(OSError) as error:
        write_pixels(tmp_path, "train", 40, enumerate(IMAGES), 25)
    assert error.value.errno == errno.ENOSPC
