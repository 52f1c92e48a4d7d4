"""Image, Pathfinder and Path-X from their files: pixels, labels, splits, and bad files."""

import io

import numpy as np
import pytest
from PIL import Image

from lab.data.lra.images import grey

HARD = "curv_contour_length_14"


def test_images_come_back(prepare, opened, samples, tmp_path):
    prepare("image", "--from", samples, "--dest", tmp_path)
    prepared = opened(tmp_path / "image")
    folder = samples / "cifar-10-batches-bin"
    test = np.fromfile(folder / "test_batch.bin", np.uint8).reshape(-1, 3_073)
    assert (prepared.labels("test") == test[:, 0]).all()
    assert (prepared.pixels("test") == grey(test[:, 1:])).all()
    train = np.concatenate(
        [
            np.fromfile(folder / f"data_batch_{number}.bin", np.uint8).reshape(-1, 3_073)
            for number in range(1, 6)
        ]
    )
    expected = {
        (int(row[0]), pixels.tobytes()) for row, pixels in zip(train, grey(train[:, 1:]), strict=True)
    }
    found = {
        (int(label), pixels.tobytes())
        for split in ("train", "valid")
        for label, pixels in zip(prepared.labels(split), prepared.pixels(split), strict=True)
    }
    assert found == expected
    assert [len(prepared.labels(split)) for split in ("train", "valid", "test")] == [900, 100, 250]
    assert prepared.manifest["classes"][6] == "frog" and prepared.manifest["pipeline"] == "both"


def test_seed_decides_which_images_are_held_out(prepare, opened, samples, tmp_path):
    for seed in (42, 43):
        prepare("image", "--from", samples, "--dest", tmp_path / str(seed), "--seed", seed)
    one, other = (opened(tmp_path / str(seed) / "image").pixels("valid") for seed in (42, 43))
    assert (one != other).any()


def write_batches(folder, **contents):
    folder.mkdir(exist_ok=True)
    for name in [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]:
        (folder / f"{name}.bin").write_bytes(contents.get(name, bytes(3_073 * 4)))
    return folder


@pytest.mark.parametrize(
    "content, said",
    [
        (bytes(3_073 * 2 - 1), "truncated"),
        (b"", "0 bytes"),
        (bytes(3_073) + b"\x0a" + bytes(3_072), "image 1, has the label 10, which is out of range"),
    ],
)
def test_bad_batches_are_refused(refusal, tmp_path, content, said):
    sentence = refusal("image", "--from", write_batches(tmp_path / "cifar", test_batch=content))
    assert said in sentence and "test_batch.bin" in sentence


def test_too_few_images_for_a_valid_split(refusal, tmp_path):
    one = {f"data_batch_{number}": bytes(3_073) for number in range(1, 6)}
    sentence = refusal("image", "--from", write_batches(tmp_path / "cifar", **one))
    assert "holds 5 training images; give 10 or more" in sentence


def test_missing_batch_is_named(refusal, tmp_path):
    folder = write_batches(tmp_path / "cifar")
    (folder / "data_batch_4.bin").unlink()
    assert "data_batch_4.bin" in refusal("image", "--from", folder)


@pytest.mark.parametrize("task, side, count", [("pathfinder", 32, 1_000), ("path-x", 128, 40)])
def test_labels_come_from_the_fourth_field(prepare, opened, samples, tmp_path, task, side, count):
    prepare(task, "--from", samples, "--dest", tmp_path)
    prepared = opened(tmp_path / task)
    folder = samples / f"pathfinder{side}" / HARD
    expected = {}
    for path in (folder / "metadata").iterdir():
        for line in path.read_text().splitlines():
            batch, name, _, label = line.split()[:4]
            expected[np.asarray(Image.open(folder / batch / name)).tobytes()] = int(label)
    found = {}
    for split in ("train", "valid", "test"):
        for label, pixels in zip(prepared.labels(split), prepared.pixels(split), strict=True):
            found[pixels.tobytes()] = label
    assert found == expected and len(found) == count
    assert len(prepared.labels("valid")) == len(prepared.labels("test")) == count // 10
    assert prepared.pixels("train").shape == (count * 8 // 10, side * side)


@pytest.fixture
def images(tmp_path):
    """A folder of twelve black images in two batches; the second line of metadata/0.npy has label 1."""
    folder = tmp_path / "pathfinder32" / HARD
    (folder / "metadata").mkdir(parents=True)
    png = io.BytesIO()
    Image.new("L", (32, 32)).save(png, "PNG")
    for batch in ("0", "1"):
        (folder / "imgs" / batch).mkdir(parents=True)
        lines = []
        for number in range(6):
            (folder / "imgs" / batch / f"sample_{number}.png").write_bytes(png.getvalue())
            lines.append(f"imgs/{batch} sample_{number}.png {number} {int(number == 1)} 1.0 14 4 2 0.5 1 1\n")
        (folder / "metadata" / f"{batch}.npy").write_text("".join(lines))
    return folder


def test_metadata_that_is_no_text_is_refused(refusal, images, tmp_path):
    np.save(images / "metadata" / "0.npy", np.zeros(3))
    assert "metadata/0.npy is not text" in refusal("pathfinder", "--from", tmp_path)


def test_label_out_of_range_is_refused(refusal, images, tmp_path):
    (images / "metadata" / "1.npy").write_text("imgs/1 sample_0.png 0 2 1.0\n")
    assert "metadata/1.npy, line 1, has the label 2" in refusal("pathfinder", "--from", tmp_path)


def test_empty_image_is_refused_or_skipped(refusal, prepare, opened, images, tmp_path, capsys):
    (images / "imgs" / "1" / "sample_2.png").write_bytes(b"")
    sentence = refusal("pathfinder", "--from", tmp_path)
    assert "imgs/1/sample_2.png is empty" in sentence and "--skip-empty-images" in sentence
    prepare("pathfinder", "--from", tmp_path, "--dest", tmp_path / "out", "--skip-empty-images")
    manifest = opened(tmp_path / "out" / "pathfinder").manifest
    assert manifest["skipped_empty_images"] == 1
    assert sum(split["examples"] for split in manifest["splits"].values()) == 11
    assert "Skipped imgs/1/sample_2.png" in capsys.readouterr().out


@pytest.mark.parametrize("content", [b"no picture", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"])
def test_damaged_image_is_refused(refusal, images, tmp_path, content):
    (images / "imgs" / "0" / "sample_3.png").write_bytes(content)
    assert "sample_3.png is not a PNG image" in refusal("pathfinder", "--from", tmp_path)


def test_images_of_another_set_are_refused(refusal, images, tmp_path):
    Image.new("L", (64, 64)).save(images / "imgs" / "0" / "sample_3.png")
    assert "32 x 32" in refusal("pathfinder", "--from", tmp_path)
    assert "pathfinder128" in refusal("path-x", "--from", tmp_path)


def test_missing_image_is_named(refusal, images, tmp_path):
    (images / "imgs" / "1" / "sample_5.png").unlink()
    assert "imgs/1/sample_5.png, which metadata/1.npy lists" in refusal("pathfinder", "--from", tmp_path)


def test_images_without_metadata_are_named(refusal, images, tmp_path):
    (images / "metadata" / "0.npy").write_text("")
    assert "metadata/0.npy with lines, such as for imgs/0/" in refusal("pathfinder", "--from", tmp_path)


def test_two_sets_are_refused(refusal, images, tmp_path):
    (tmp_path / "again").mkdir()
    images.parent.rename(tmp_path / "again" / "pathfinder32")
    (tmp_path / "pathfinder32").mkdir()
    (tmp_path / "pathfinder32" / HARD / "metadata").mkdir(parents=True)
    (tmp_path / "pathfinder32" / HARD / "metadata" / "0.npy").write_text("")
    assert "holds two sets" in refusal("pathfinder", "--from", tmp_path)
