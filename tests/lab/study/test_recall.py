"""The page of associative recall: answers by load, and the picture of them against the size of the state."""

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


def records(of=lambda method, load: (0.5, 1_000)):
    """Three seeds of every method and usual load; `of` gives share answered and numbers in the state."""
    found = []
    for load in STUDY.axes["load"].usual:
        for method in STUDY.axes["method"].choices:
            share, state = of(method, load)
            for seed in (1, 2, 3):
                cell = {"width": "64", "load": load, "method": method, "seed": seed}
                values = {"accuracy": share + seed / 1_000, "state_numbers": state, "examples": 256}
                found.append(record_of(cell, values, settings=SETTINGS, study="recall"))
    return found


def test_the_page_answers_when_its_methods_are_measured():
    page = " ".join(write_page(STUDY, records()).split())
    assert "softmax attention answers 50.2 % of the questions and NormAttention 50.2 %" in page
    assert "LLN+Diag 50.2 (one seed) and GLA 50.2 %" in page
    assert "There is no answer yet" in write_page(STUDY, records()[:2])


def test_the_picture_has_a_panel_for_each_load_and_a_dot_for_each_method(tmp_path):
    shares = {"softmax": (0.9, 8_000), "elu": (0.2, 2_000)}
    found = records(lambda method, load: shares.get(method, (0.5, 4_000 + len(method))))
    [picture] = pictures_of(STUDY, found, tmp_path)
    assert picture.path.name == "64-state.png"
    picture.draw(picture.path)
    assert picture.is_current()
    section = section_of(STUDY, found)
    points = recall.points_of(section, [one for one in found if one["cell"]["load"] == "n128-p32"])
    assert [(one.label, one.x, one.y) for one in points[:1]] == [("softmax", 8_000, 90.2)]
    assert [one.label for one in points] == [one.label for one in STUDY.axes["method"].choices.values()]


def test_a_load_of_a_single_method_has_a_panel_only_where_no_load_has_more():
    alone = [one for one in records() if one["cell"]["method"] == "norm"]
    others = [one for one in records() if one["cell"]["load"] == "n64-p8"]
    assert list(recall.panels_of(section_of(STUDY, others + alone))) == ["64 tokens, 8 pairs"]
    assert len(recall.panels_of(section_of(STUDY, alone))) == 3
