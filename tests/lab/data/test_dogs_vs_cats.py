"""data-prep/images.sh dogs-vs-cats: made-up photographs of all kinds, and --grey and --size of the others."""

import io
import json
import zipfile
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from lab.data import images as command
from lab.data import images as dogs_vs_cats
from lab.data.images import Photograph, decoded, in_grey, shrunk
from user_dir.tasks.image_data import open_image_data

COLOURS = {"cat": (200, 0, 0), "dog": (0, 0, 200)}
MODES = ("RGB", "L", "P", "CMYK", "RGBA")


def picture(colour=(10, 20, 30), size=(40, 30), mode="RGB"):
    content = io.BytesIO()
    kind = "JPEG" if mode in ("RGB", "L", "CMYK") else "PNG"
    Image.new("RGB", size, colour).convert(mode).save(content, kind)
    return content.getvalue()


def write_pets(folder, count=20, layout="PetImages/{}/{}.jpg", broken=()):
    """`count` photographs of each class in turning modes; those whose number is in `broken` are cut off."""
    for name, colour in COLOURS.items():
        for number in range(count):
            path = folder / layout.format(name.capitalize() if "/{}/" in layout else name, number)
            path.parent.mkdir(parents=True, exist_ok=True)
            content = picture(colour, mode=MODES[number % len(MODES)])
            path.write_bytes(content[:60] if number in broken else content)
    return folder


def pack(folder, archive):
    """The photographs of a folder in a zip file, in another order than in the folder."""
    with zipfile.ZipFile(archive, "w") as file:
        for path in sorted(folder.rglob("*.jpg"), reverse=True):
            file.write(path, path.relative_to(folder))
    return archive


def pets(folder, *words):
    return (command, "dogs-vs-cats", "--from", folder, "--dest", folder.parent / "out", "--size", 8, *words)


def test_photographs_become_squares_with_their_classes(call, refused, tmp_path, capsys):
    raw = write_pets(tmp_path / "raw", broken=(2,))
    (raw / "PetImages" / "Dog" / "Thumbs.db").write_bytes(b"not a photograph")
    sentence = refused(*pets(raw))
    assert "expected 12,500 images of each class" in sentence and "found 40 images" in sentence
    call(*pets(raw, "--partial"))
    printed = capsys.readouterr().out
    assert "2 images cannot be read and are left out: PetImages/" in printed
    assert "dogs-vs-cats (NOT the original files), 8 x 8 x 3 of 256 levels" in printed
    data = open_image_data(tmp_path / "out")
    assert data.classes == ("cat", "dog") and set(data.manifest["splits"]) == {"train", "valid"}
    assert len(data.manifest["unreadable"]) == 2
    counts = []
    for split in ("train", "valid"):
        images, labels = data.labelled(split)
        counts += [int((labels == 0).sum()), int((labels == 1).sum())]
        colours = images.astype(int).mean((1, 2))
        coloured = np.ptp(colours, axis=1) > 50  # the others are grey
        assert coloured.sum() > 0 and (colours[coloured].argmax(1) == 2 * labels[coloured]).all()
    assert sum(counts) == 38 and sorted(counts[2:]) in ([3, 3], [3, 4], [4, 4])
    assert {path.name for path in (tmp_path / "out").iterdir()} >= {"train.images.npy", "preparation.json"}
    assert not list((tmp_path / "out").glob("tmp*"))
    before = (tmp_path / "out" / "preparation.json").read_bytes()
    call(*pets(raw, "--partial"))
    assert (tmp_path / "out" / "preparation.json").read_bytes() == before
    sentence = refused(*pets(raw, "--partial", "--grey"))
    assert "was prepared without grey, not with grey; name another --dest" in sentence


def test_a_zip_file_of_the_other_layout_gives_the_same(call, tmp_path, monkeypatch):
    first = write_pets(tmp_path / "a" / "raw", 10)
    second = write_pets(tmp_path / "b" / "raw", 10, "train/{}.{}.jpg")
    archive = pack(second, tmp_path / "b" / "train.zip")
    call(*pets(first, "--partial"))
    monkeypatch.setattr(dogs_vs_cats, "EACH", 10)
    call(*pets(archive))
    arrays = [
        [np.load(tmp_path / side / "out" / f"{split}.{kind}.npy") for side in ("a", "b")]
        for split in ("train", "valid")
        for kind in ("images", "label")
    ]
    assert all(np.array_equal(*pair) for pair in arrays)
    manifests = [json.loads((tmp_path / side / "out" / "preparation.json").read_text()) for side in "ab"]
    assert [manifest["verified"] for manifest in manifests] == [False, None]
    assert list(manifests[1]["sources"]) == ["train.zip"]


def test_the_published_archive_is_known_by_its_sha256(call, tmp_path, monkeypatch):
    raw = write_pets(tmp_path / "raw", 10)
    archive = pack(raw, tmp_path / dogs_vs_cats.PUBLISHED[0])
    published = SimpleNamespace(url="https://example.org/x.zip", sha256=dogs_vs_cats.sha256_of(archive))
    monkeypatch.setattr(dogs_vs_cats, "PUBLISHED", (archive.name, published))
    call(*pets(archive))
    assert open_image_data(tmp_path / "out").manifest["verified"] is True


def test_every_mode_and_what_cannot_be_read():
    def one(content, **how):
        options = {"side": 6, "grey": False, "whole": True, **how}
        return decoded(Photograph("x.jpg", 0, 0, lambda: content), **options)

    for mode in MODES:
        assert one(picture(mode=mode)).shape == (6, 6, 3)
    assert one(picture(), grey=True).shape == (6, 6, 1)
    assert one(picture(size=(3, 90)), whole=False).shape == (6, 6, 3)
    for content in (b"", b"not an image", picture()[:60]):
        assert one(content) is None


def test_evaluation_images_are_the_centre():
    """A picture of 56 x 28, black except for the middle half of its width, which remains after cropping."""
    image = np.zeros((28, 56, 3), np.uint8)
    image[:, 14:42] = 255
    content = io.BytesIO()
    Image.fromarray(image).save(content, "PNG")
    photograph = Photograph("x.jpg", 0, 0, content.getvalue)
    assert decoded(photograph, 14, True, whole=False).min() > 200
    assert decoded(photograph, 14, True, whole=True)[:, [0, -1]].max() == 0


def test_a_sixteenth_is_cut_off_each_side_of_an_evaluation_image():
    image = np.zeros((16, 16, 3), np.uint8)
    image[1:15, 1:15] = 255
    content = io.BytesIO()
    Image.fromarray(image).save(content, "PNG")
    photograph = Photograph("x.jpg", 0, 0, content.getvalue)
    assert decoded(photograph, 14, True, whole=False).min() == 255
    assert decoded(photograph, 14, True, whole=True).min() < 255


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda raw: [path.unlink() for path in raw.glob("*/Dog/*")], "holds no image of a dog, such as dog"),
        (lambda raw: write_pets(raw, 1, "train/{}.{}.jpg"), "cat 0 twice, as "),
        (lambda raw: write_pets(raw, broken=range(3)), "6 of 40 images in "),
        (lambda raw: [path.unlink() for path in raw.glob("*/Cat/*") if int(path.stem) > 3], "4 images of"),
    ],
    ids=["empty class", "both layouts", "many broken", "few"],
)
def test_folders_that_cannot_be(refused, tmp_path, change, sentence):
    raw = write_pets(tmp_path / "raw")
    change(raw)
    assert sentence in refused(*pets(raw, "--partial"))
    assert not (tmp_path / "out").exists()


def test_a_file_that_is_cut_off(refused, tmp_path):
    (tmp_path / "cut.zip").write_bytes(b"PK\x03\x04")
    assert "cut.zip is not a zip file, or is truncated" in refused(*pets(tmp_path / "cut.zip"))


def test_grey_and_smaller(shared_dir, call, refused, tmp_path):
    sample = shared_dir / "data" / "lra" / "cifar-10-binary_sample.tar.gz"
    words = (command, "cifar10", "--from", sample, "--partial")
    call(*words, "--dest", tmp_path / "whole")
    call(*words, "--grey", "--size", 16, "--dest", tmp_path / "small")
    small, whole = (open_image_data(tmp_path / name).images("test") for name in ("small", "whole"))
    assert small.shape == (250, 16, 16, 1)
    grey = np.asarray(Image.fromarray(np.array(whole[3])).convert("L")).astype(float)
    means = grey.reshape(16, 2, 16, 2).mean((1, 3))
    assert np.array_equal(small[3, :, :, 0], np.floor(means + 0.5))
    assert "--size is 12; it must divide the side of the images, 32 x 32" in refused(
        *words, "--size", 12, "--dest", tmp_path / "odd"
    )


def test_means_are_rounded_half_up_and_grey_is_pillows():
    images = np.array([[0, 1], [0, 1], [1, 1], [1, 0]], np.uint8).reshape(1, 2, 4, 1)[:, :, :2]
    assert shrunk(images, 1).item() == 1  # 0, 1 above 1, 1
    assert shrunk(np.array([[[[1], [0]], [[1], [0]]]], np.uint8), 1).item() == 1  # 0.5
    colours = np.random.default_rng(0).integers(0, 256, (50, 32, 32, 3)).astype(np.uint8)
    for image, found in zip(colours, in_grey(colours), strict=True):
        assert np.array_equal(np.asarray(Image.fromarray(image).convert("L")), found[:, :, 0])
