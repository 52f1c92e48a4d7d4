"""The study of images: its page, the paper's rows by preset, samples, and training by update and by time."""

from base64 import b64encode

import numpy as np
from PIL import Image

from lab.papers import read_table
from lab.publish import images
from lab.study.declaration import read_study
from lab.study.page import write_page
from lab.study.pictures import pictures_of
from lab.study.table import verdicts
from tests.lab.study.conftest import record_of

STUDY = read_study("images")


MODEL = {"decoder_layers": 2, "decoder_embed_dim": 64, "decoder_attention_heads": 4}


def record(method, seed=1, bits=2.0, preset="digits", curves=None, model=MODEL, brighter=0):
    """A made-up record of a cell; `brighter` are levels by which what the model draws is so."""
    levels = {"test images": 0, "drawn": 1 + brighter, "completed": 2 + brighter}
    rows = {name: b64encode(bytes(range(one, one + 12)) * 10).decode() for name, one in levels.items()}
    found = {
        "parameters": 1234,
        "images": {"train": 3, "valid": 2, "test": 1},
        "bits_per_dimension": {"train": bits - 0.1, "valid": bits, "test": bits + 0.1},
        "without_a_model": {"uniform": 4.0, "histogram": 2.9, "histogram_by_place": 2.4},
        "pictures": rows,
    }
    others = {
        "settings": {"model": model, "dataset": {"batch_size": 32}},
        "data": {"corpus": "digits", "verified": None, "levels": 17, "height": 4, "width": 3, "channels": 1},
        "training": {"updates": 40, "seconds": 20.0, "curves": curves or {}},
    }
    return record_of({"preset": preset, "method": method, "seed": seed}, found, **others)


def test_every_preset_has_the_paper_s_rows_of_its_images():
    for preset, table in (
        ("digits", "linear_01_mnist"),
        ("mnist_small", "linear_01_mnist"),
        ("cifar10", "linear_02_cifar10"),
    ):
        paper = {row["method"]: row["bits_per_dim"] for row in read_table(table)}
        page = write_page(
            STUDY, [record(name, preset=preset) for name in ("softmax", "linear", "lsh-4", "t2")]
        )
        lines = [line for line in page.splitlines() if line.startswith("| ")]
        assert [line.split("|")[-3].strip() for line in lines[2:6]] == [
            paper["softmax"],
            paper["linear"],
            "–",
            paper["lsh-4"],
        ]
        assert "| one histogram per place | 2.400 | – | – | – | – | – |  |" in lines


def test_notes_say_the_size_of_the_model():
    assert "2 layers of width 64, 4 heads, 40 updates of" in write_page(STUDY, [record("softmax")])
    paper = record("linear", preset="cifar10", model={"decoder_layers": 16})
    assert "the paper's model, 40 updates of" in write_page(STUDY, [paper])


def test_frequencies_are_a_baseline_and_claims_are_of_their_images():
    records = [
        record(name, seed, bits) for name, bits in (("softmax", 1.9), ("linear", 2.3)) for seed in (1, 2, 3)
    ]
    [(claim, verdict)] = verdicts(STUDY, records)
    assert claim.where == "Table 1" and verdict.outcome == "not comparable" and "1+elu" in verdict.effect
    of_cifar = verdicts(STUDY, [record("linear", preset="cifar10")])
    assert {claim.where for claim, _ in of_cifar} == {"Table 2"}


def test_samples_and_curves_are_drawn_where_there_are_any(tmp_path):
    old, new = (
        record("softmax"),
        record("linear", preset="mnist_small", curves={"train": [[20, 3.0], [40, 2.0]]}),
    )
    pictures = pictures_of(STUDY, [old, new], tmp_path)
    assert [one.path.name for one in pictures] == [
        "digits-samples.png",
        "mnist_small-curves.png",
        "mnist_small-samples.png",
    ]
    for one in pictures:
        one.draw(one.path)
        assert one.is_current() and np.asarray(Image.open(one.path)).std() > 0


def test_samples_show_what_each_model_has_drawn_and_completed(monkeypatch, tmp_path):
    """A row for each model below the test images, all from the records of the first seed."""
    figures = []
    monkeypatch.setattr(images, "save_figure", lambda figure, *unused: figures.append(figure))
    records = [record("softmax"), record("linear", brighter=2), record("linear", seed=2, brighter=3)]
    [picture] = pictures_of(STUDY, records, tmp_path)
    picture.draw(picture.path)
    [empty, *axes] = figures[0].axes
    first = [int(16 * axis.images[0].get_array()[0, 0]) for axis in axes]
    assert not empty.images and first == [0, 1, 2, 3, 4]
    labels = {name: choice.label for name, choice in STUDY.axes["method"].choices.items()}
    beside = [axis.get_ylabel() for axis in axes]
    assert beside == ["test images", labels["softmax"], "", labels["linear"], ""]
    assert [axis.get_title("left") for axis in axes[1:3]] == ["drawn", "upper half given"]
    whole = np.arange(4, 16).reshape(4, 3) / 16
    assert np.array_equal(axes[-1].images[0].get_array()[:, :3], whole)
