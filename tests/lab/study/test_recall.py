"""The page of associative recall: answers by the number of pairs, and the picture of them."""

from lab.publish import recall
from lab.study.declaration import read_study
from lab.study.page import pictures_of, section_of, write_page
from tests.lab.study.conftest import record_of

STUDY = read_study("recall")
SETTINGS = {
    "task": {"_name": "recall"},
    "model": {"decoder_layers": 2, "decoder_attention_heads": 1},
    "dataset": {"batch_size": 64},
}


def records(of=lambda method: (0.5, 1_000)):
    """Three seeds of every method; `of` gives the share answered of one pair and numbers in the state."""
    found = []
    for method in STUDY.axes["method"].choices:
        share, state = of(method)
        for seed in (1, 2, 3):
            cell = {"width": "64", "length": "n64", "method": method, "seed": seed}
            by_pairs = {str(number): (share + seed / 1_000) / number for number in (1, 2, 4, 8, 16)}
            values = {"accuracy": share + seed / 1_000, "by_pairs": by_pairs, "state_numbers": state}
            found.append(record_of(cell, {**values, "examples": 256}, settings=SETTINGS, study="recall"))
    return found


def test_the_page_answers_when_its_methods_are_measured():
    page = " ".join(write_page(STUDY, records()).split())
    assert "softmax attention answers 50.2 %" in page
    assert "| softmax | 50.2 (50.1 to 50.3) | 25.1 |" in page
    assert "There is no answer yet" in write_page(STUDY, records()[:2])


def test_the_picture_has_a_curve_for_each_method_with_the_size_of_its_state(tmp_path):
    found = records(lambda method: {"softmax": (0.9, 8_000)}.get(method, (0.5, 4_000)))
    [picture] = pictures_of(STUDY, found, tmp_path)
    assert picture.path.name == "64-n64-pairs.png"
    picture.draw(picture.path)
    assert picture.is_current()
    curves = recall.curves_of(section_of(STUDY, found))
    labels = [choice.label for choice in STUDY.axes["method"].choices.values()]
    assert [curve.label.partition(", ")[0] for curve in curves] == labels
    first = curves[0]
    assert (first.label, list(first.x)) == ("softmax, 8,000", [1, 2, 4, 8, 16])
    assert [round(y, 6) for y in first.y] == [90.2, 45.1, 22.55, 11.275, 5.6375]
    assert (round(first.low[0], 6), round(first.high[0], 6)) == (90.1, 90.3)
