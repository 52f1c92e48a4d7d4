"""data-prep/images.sh: real digits, idx files, the CIFAR-10 sample, and errors for damaged files."""

import gzip
import re
import shutil
import struct
import subprocess

import numpy as np
import pytest

from lab.data import images as command
from lab.data.images import hold_out, interleaved
from lab.files import ROOT
from lab.run.plan import read_experiment
from user_dir.tasks.image_data import ImageShape, open_image_data

NAMES = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")


def idx(array):
    header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.astype(np.uint8).tobytes()


def write_mnist(folder, images=30, change=None):
    """MNIST's four files with random images, the first packed; `change` may spoil the content of one."""
    folder.mkdir()
    generator = np.random.default_rng(0)
    arrays = {}
    for name in NAMES:
        count = images if name.startswith("train") else 10
        shape = (count, 28, 28) if "images" in name else (count,)
        arrays[name] = generator.integers(0, 256 if "images" in name else 10, shape).astype(np.uint8)
        content = idx(arrays[name])
        if change and name == change[0]:
            content = change[1](content)
        packed = name == NAMES[0] and not change
        path = folder / f"{name}-ubyte{'.gz' if packed else ''}"
        path.write_bytes(gzip.compress(content) if packed else content)
    return arrays


def test_digits_are_those_of_scikit_learn_split_for_good(call, tmp_path, capsys):
    from sklearn.datasets import load_digits

    call(command, "digits", "--dest", tmp_path / "digits")
    assert "8 x 8 x 1 of 17 levels; 1,297 train, 250 valid, 250 test" in capsys.readouterr().out
    data = open_image_data(tmp_path / "digits")
    assert data.shape == ImageShape(17, 8, 8, 1)
    facts = data.manifest
    assert facts["splits"]["train"] == {"images": 1297} and facts["corpus"] == "digits"
    assert set(facts["files"]) == {f"{s}.{k}.npy" for s in facts["splits"] for k in ("images", "label")}
    parts = [np.array(data.images(split)) for split in ("test", "valid", "train")]
    order = np.random.default_rng(42).permutation(1797)
    assert np.array_equal(np.concatenate(parts)[..., 0], load_digits().images[order])
    labels = np.concatenate([np.load(tmp_path / f"digits/{s}.label.npy") for s in ("test", "valid", "train")])
    assert np.array_equal(labels, load_digits().target[order])


def test_mnists_files_packed_and_not(call, refused, tmp_path, capsys):
    arrays = write_mnist(tmp_path / "raw")
    words = (command, "mnist", "--from", tmp_path / "raw", "--dest", tmp_path / "mnist")
    sentence = refused(*words)
    assert "train-images-idx3-ubyte.gz has the sha256" in sentence and not (tmp_path / "mnist").exists()
    call(*words, "--partial")
    assert "mnist (NOT the original files), 28 x 28 x 1" in capsys.readouterr().out
    assert "accept it with --partial" in refused(*words)
    data = open_image_data(tmp_path / "mnist")
    train, valid = (data.images(split)[..., 0] for split in ("train", "valid"))
    assert (len(train), len(valid)) == (27, 3)
    assert np.array_equal(np.concatenate([train, valid]), arrays[NAMES[0]])
    assert np.array_equal(data.images("test")[..., 0], arrays[NAMES[2]])
    assert np.array_equal(np.load(tmp_path / "mnist/test.label.npy"), arrays[NAMES[3]])
    assert data.manifest["verified"] is False and len(data.manifest["sources"]) == 4
    write_mnist(tmp_path / "other", images=40)
    sentence = refused(command, "mnist", "--from", tmp_path / "other", "--dest", words[-1], "--partial")
    assert "was prepared from other files than" in sentence and "name another --dest" in sentence
    sentence = refused(command, "digits", "--dest", tmp_path / "mnist")
    assert "was prepared with corpus mnist, not with corpus digits; name another --dest" in sentence


def test_mnist_packed_again_is_the_original(call, shared_dir, tmp_path):
    raw = shutil.copytree(shared_dir / "data" / "mnist", tmp_path / "raw")
    again = raw / f"{NAMES[1]}-ubyte.gz"
    again.chmod(0o644)
    again.write_bytes(gzip.compress(gzip.decompress(again.read_bytes()), compresslevel=1, mtime=1))
    call(command, "mnist", "--from", raw, "--dest", tmp_path / "mnist")
    assert open_image_data(tmp_path / "mnist").manifest["verified"] is True


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (NAMES[0], lambda x: b"\x00\x00\x08\x01" + x[4:], "begins with 00 00 08 01; expected 00 00 08 03"),
        (NAMES[0], lambda x: x[:-1], "has 23,535 bytes; expected 23,536"),
        (NAMES[0], lambda x: x[:9], "is truncated: it has 9 bytes"),
        (
            NAMES[2],
            lambda x: x[:8] + struct.pack(">2I", 14, 56) + x[16:],
            "holds images of 14 x 56; expected 28",
        ),
        (NAMES[3], lambda x: x[:8] + b"\x0c" + x[9:], "label 12 of image 0 of t10k is out of range"),
        (NAMES[1], lambda x: idx(np.zeros(29)), "has 30 images but 29 labels of train"),
    ],
)
def test_damaged_idx_files(refused, tmp_path, name, change, message):
    write_mnist(tmp_path / "raw", change=(name, change))
    words = ("--from", tmp_path / "raw", "--dest", tmp_path / "out", "--partial")
    assert message in refused(command, "mnist", *words)
    assert not (tmp_path / "out").exists()


def test_missing_and_cut_archives(refused, tmp_path):
    write_mnist(tmp_path / "raw")
    packed = tmp_path / "raw" / f"{NAMES[0]}-ubyte.gz"
    packed.write_bytes(packed.read_bytes()[:-9])
    words = (command, "mnist", "--from", tmp_path / "raw", "--dest", tmp_path / "out", "--partial")
    assert "is truncated or not a gzip file" in refused(*words)
    packed.unlink()
    assert f"holds no {NAMES[0]}-ubyte.gz" in refused(*words)


def test_cifar10s_planes_become_pixels(shared_dir, call, refused, tmp_path):
    sample = shared_dir / "data" / "lra" / "cifar-10-binary_sample.tar.gz"
    words = (command, "cifar10", "--from", sample, "--dest", tmp_path / "cifar10")
    assert "is not the original archive cifar-10-binary.tar.gz" in refused(*words)
    call(*words, "--partial")
    data = open_image_data(tmp_path / "cifar10")
    assert data.shape == ImageShape(256, 32, 32, 3)
    assert [len(data.images(split)) for split in ("train", "valid", "test")] == [900, 100, 250]
    # The first labels of the test batch (the data's README).
    assert np.load(tmp_path / "cifar10/test.label.npy")[:10].tolist() == [3, 8, 8, 0, 6, 6, 1, 6, 3, 1]


def test_the_documented_sample_of_cifar10(call, tmp_path):
    """40 epochs of it are 720 updates; without the flag the preset trains 40 epochs of all images."""
    text = (ROOT / "docs" / "sequences.md").read_text()
    cut = re.search(r"^    (for f in cifar-10-batches-bin.*)$", text, re.MULTILINE)[1]
    for folder in ("cifar-10-batches-bin", "cifar10-sample"):
        (tmp_path / folder).mkdir()
    for name in [*(f"data_batch_{n}.bin" for n in range(1, 6)), "test_batch.bin"]:
        (tmp_path / "cifar-10-batches-bin" / name).write_bytes(bytes(3073 * 210))
    subprocess.run(["bash", "-c", cut], cwd=tmp_path, check=True)
    words = ("--from", tmp_path / "cifar10-sample", "--dest", tmp_path / "out")
    call(command, "cifar10", *words, "--partial")
    data = open_image_data(tmp_path / "out")
    assert [len(data.images(split)) for split in ("train", "valid", "test")] == [900, 100, 200]
    preset = read_experiment(ROOT / "configs" / "vit" / "cifar10.yaml")
    batch = preset.get("dataset", "batch_size")
    assert 720 * batch == 40 * 900 and "--max-update 720" in text
    assert preset.get("optimization", "max_update") * batch == 40 * 45_000


def test_interleaving():
    planes = np.random.default_rng(0).integers(0, 256, (3, 3072)).astype(np.uint8)
    images = interleaved(planes).reshape(3, -1)
    for row, column, channel in ((0, 0, 0), (5, 31, 2), (31, 7, 1)):
        assert np.array_equal(
            images[:, 3 * (32 * row + column) + channel], planes[:, 1024 * channel + 32 * row + column]
        )


def test_valid_is_the_end_of_train():
    train = np.arange(60_000), np.arange(60_000)
    splits = hold_out(train, train)
    assert len(splits["train"][0]) == 55_000 and splits["valid"][1][0] == 55_000


@pytest.mark.parametrize("script", ["images.sh cifar10", "lra.sh image"])
def test_pickles_are_never_opened(refused, tmp_path, script):
    folder = tmp_path / "raw" / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    (folder / "data_batch_1").write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    words = ("--from", folder.parent, "--dest", tmp_path / "out", "--partial")
    sentence = refused(*f"data-prep/{script}".split(), *words)
    assert "holds the pickled version of CIFAR-10, which is never opened" in sentence
    assert "cifar-10-binary.tar.gz" in sentence and not list(tmp_path.glob("out/*"))
