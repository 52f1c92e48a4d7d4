"""The study of Vision Transformers: the papers' rows, exponents in training, fixed exponents."""

from dataclasses import replace

import pytest

from lab.papers import read_table
from lab.publish import images
from lab.study.declaration import read_study
from lab.study.page import write_page
from lab.study.pictures import pictures_of, section_of
from tests.lab.study.conftest import record_of

STUDY = read_study("vit")


def record(method, seed=1, accuracy=90.0, preset="digits", **others):
    """A made-up record of a cell."""
    exponents = {"alpha/layer0": [[20, 1.9], [40, 2.1]], "beta/layer0": [[20, 2.2], [40, 2.3]]}
    found = {
        "architecture": "vit",
        "parameters": 1234,
        "training_images": 1297,
        "split": "test",
        "examples": 250,
        "accuracy": accuracy,
        "most_frequent_class": 10.0,
        "gradient_norm": 1.5,
        "largest_inverse_loss_scale": None,
        "exponents": exponents if "lln" in method else {},
        **others,
    }
    others = {
        "settings": {"model": {"patch_size": 1}, "dataset": {"batch_size": 64}},
        "data": {"corpus": "digits", "verified": False},
        "training": {"updates": 40, "seconds": 50.0, "curves": {"valid_accuracy": [[20, 10.0], [40, 50.0]]}},
    }
    return record_of({"preset": preset, "method": method, "seed": seed}, found, **others)


RECORDS = [
    record("t2"),
    record("lln_diag", accuracy=94.0),
    record("lln_diag", 2, 92.0),
    record("linformer"),
    record("softmax"),
    record("lln_diag-8", accuracy=91.0),
    record("lln_diag-0.25"),
]


def test_the_table_has_the_paper_s_figures_and_that_of_the_most_frequent_class():
    paper = {row["method"]: row["accuracy"] for row in read_table("lln_03_vit")}
    page = write_page(STUDY, RECORDS)
    lines = page.splitlines()
    rows = {line.split("|")[1].strip(): line for line in reversed(lines) if line.startswith("| ")}
    table = [line.split("|")[1].strip() for line in lines if line.startswith("| ")]
    assert table[2:9] == [
        "softmax",
        "LLN+Diag",
        "LLN+Diag, α = β = 0.25",
        "LLN+Diag, α = β = 8",
        "Linformer",
        "TransNormer T2",
        "the most frequent class",
    ]
    assert (
        rows["LLN+Diag"].startswith("| LLN+Diag | 93.0 (92.0 to 94.0) |")
        and paper["LLN+Diag"] in rows["LLN+Diag"]
    )
    assert paper["Softmax"] in rows["softmax"] and paper["Linformer"] in rows["Linformer"]
    assert "| – |" in rows["LLN+Diag, α = β = 8"] and rows["the most frequent class"].startswith(
        "| the most frequent class | 10.0 |"
    )
    assert "digits (NOT the original files)" in page and "patches of 1" in page


def test_exponents_by_moment_matching_are_shown_and_fixed_ones_are_not():
    [table] = images.exponent_tables(section_of(STUDY, RECORDS))
    assert "| layer 1 | 1.90 to 2.10 | 2.20 to 2.30 |" in table.splitlines()
    authors = record("lln_diag_authors", preset="digits_short")
    assert "the authors' a and b" in images.exponent_tables(section_of(STUDY, [authors]))[0]
    assert images.exponent_tables(section_of(STUDY, [record("lln_diag-8"), record("softmax")])) == []


def test_accuracy_against_fixed_exponents_is_their_median_and_range(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(images, "plot_curves", lambda path, panels, **others: drawn.extend(panels))
    records = [*RECORDS, record("lln_diag-8", 2, 95.0), record("lln_diag-8", 3, 97.0)]
    images.draw_fixed(section_of(STUDY, records), "source", tmp_path / "fixed.png")
    [(_, _, _, [fixed, matched])] = drawn
    assert (fixed.x, fixed.y) == ((0.25, 8.0), [90.0, 95.0]) and matched.y == [93.0, 93.0]
    assert (fixed.low, fixed.high) == ([90.0, 91.0], [90.0, 97.0])


def test_the_loss_scale_has_a_table_in_float16_only():
    half = [
        record(name, preset="dogs_vs_cats_fp16", largest_inverse_loss_scale=scale)
        for name, scale in (("lln_diag-2", 1 / 128), ("lln_diag-4", 1 / 64))
    ]
    page = write_page(STUDY, half)
    assert "| LLN+Diag, α = β = 4 | 1.6e-02 |" in page and "Figure 10b" in page
    assert "loss scale" not in write_page(STUDY, RECORDS)


def test_the_pictures_are_drawn_of_every_method(tmp_path):
    records = [record(name) for name in STUDY.axes["method"].choices]
    pictures = pictures_of(STUDY, records, tmp_path)
    assert [picture.path.name for picture in pictures] == [
        "digits-accuracy.png",
        "digits-exponents.png",
        "digits-fixed.png",
    ]
    for picture in pictures:
        picture.draw(picture.path)
        assert picture.is_current()


@pytest.mark.parametrize(
    ("methods", "titles"),
    [
        (["softmax", "t1"], ["accuracy"]),
        (["lln_diag-2"], ["fixed"]),
        (["lln_diag"], ["accuracy", "exponents"]),
    ],
)
def test_a_picture_without_anything_to_show_is_left_out(tmp_path, methods, titles):
    pictures = pictures_of(STUDY, [record(name) for name in methods], tmp_path)
    assert [picture.path.name for picture in pictures] == [f"digits-{title}.png" for title in titles]
    for picture in pictures:
        picture.draw(picture.path)


def test_an_attention_of_one_s_own_has_a_curve(tmp_path):
    method = replace(STUDY.axes["method"].choices["t1"], name="mine")
    axis = replace(STUDY.axes["method"], choices={"mine": method})
    study = replace(STUDY, axes={**STUDY.axes, "method": axis})
    [picture] = pictures_of(study, [record("mine")], tmp_path)
    picture.draw(picture.path)
    assert picture.is_current()
