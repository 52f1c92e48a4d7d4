"""Long Range Arena as studies: choices that depend on others, the papers' rows, averages, the evaluation."""

import json

import pytest

from lab.errors import UserError
from lab.papers import read_table
from lab.study import cli as study
from lab.study.declaration import read_study
from lab.study.page import write_page
from lab.study.table import write_table
from tests.helpers import tiny
from tests.helpers.lra import write_lra
from tests.lab.study.conftest import cells, record_of
from user_dir.models.lra.presets import SIZE

TASKS = ("text", "listops", "retrieval", "pathfinder", "image")
OWN_RUNS = {"LS", "cosFormer", "FLASH-quad", "FLASH", "TransNormer T1", "TransNormer T2"}


@pytest.fixture(scope="module")
def lra():
    return read_study("lra")


def record(task, method, seed, accuracy, preset="lra_skyformer", setting="short", examples=9):
    cell = {"preset": preset, "setting": setting, "task": task, "method": method, "seed": seed}
    found = {"accuracy": accuracy, "parameters": 1000 + seed, "most_frequent": 50.0, "published_sizes": False}
    others = {
        "settings": {"task": {"data": task}},
        "own_flags": ["--lr", "0.1", "--encoder-attention", method],
        "data": {"origin": "sample", "seed": None, "examples": {"train": examples, "test": 10}},
        "training": {"updates": 1000, "seconds": 2.0, "curves": {}},
    }
    return record_of(cell, found, **others)


def table(of, records, preset="lra_skyformer"):
    [spec] = [spec for spec in of.tables if spec.only["preset"] == (preset,)]
    return write_table(spec, records, of.baselines)


def test_an_average_is_of_the_figures_that_its_row_shows(lra):
    records = [record("text", "elu", seed, 60.0 + seed) for seed in (1, 2, 6)]
    records += [record(task, "elu", 1, 55.0 + 10 * place) for place, task in enumerate(TASKS[1:])]
    records += [record("text", "lln", 1, 51.5)]
    records += [record(task, "softmax", 1, 51.0 + 10 * place) for place, task in enumerate(TASKS)]
    text = table(lra, records)
    row = "| 62.00 (61.00 to 66.00) | 55.00 | 65.00 | 75.00 | 85.00 | 68.40 | 1,001 to 1,006 |"
    assert f"| 1+elu {row}" in text
    row = "| 51.00\\* [1 of 3 seeds] | 61.00 | 71.00 | 81.00 | 91.00 | – | 1,001 |"
    assert f"| softmax {row}" in text  # a figure at the baseline
    assert "| LLN | 51.50\\* [1 of 3 seeds] | – | – | – | – | – | 1,001 |" in text
    assert "| most frequent class | 50.00 | 50.00 | 50.00 | 50.00 | 50.00 | – | – |" in text
    assert "average" not in table(lra, records[:4])


@pytest.mark.parametrize("preset", ["lra_skyformer", "lra_state_space"])
def test_the_papers_rows_of_its_pipeline_only(lra, preset):
    text = table(lra, [record(task, "elu", 1, 60.0, preset) for task in TASKS], preset)
    for row in read_table("transnormer_06_lra"):
        figures = " | ".join(row[column] for column in (*TASKS, "avg"))
        shown = any(
            line.startswith(f"| {row['model']} (") and f"TransNormer, Table 6) | {figures} |" in line
            for line in text.splitlines()
        )
        assert shown == ((row["model"] in OWN_RUNS) == (preset == "lra_state_space"))
    rows = len(read_table("lln_05_lra"))
    assert text.count("(LLN, Table 5)") == (rows if preset == "lra_skyformer" else 0)


def test_the_page_names_data_settings_and_the_form_of_performer(lra):
    page = write_page(lra, [record("listops", "performer", 1, 60.0)])
    assert "listops: sample data (9 train, 10 test), 1,000 updates: --lr 0.1" in page
    assert "not the papers' setting" in page and "performer-pytorch's form" in page
    assert (SIZE["encoder_layers"], SIZE["encoder_embed_dim"]) == (2, 64) and "2 layers of width 64" in page


def test_runs_on_different_data_share_no_page(tmp_path):
    from lab.study.shown import check_one_setting

    one, other = record("text", "elu", 1, 60.0), record("text", "lln", 1, 60.0, examples=8)
    with pytest.raises(UserError, match="cells of different text"):
        check_one_setting(read_study("lra"), [one, other], tmp_path)


def test_a_setting_is_for_the_tasks_that_it_names(lra):
    assert {cell.values["task"] for cell in cells(lra, {"setting": ["learned"]})} == {"text", "listops"}
    with pytest.raises(UserError, match="--setting learned: lra has no settings for it"):
        cells(lra, {"setting": ["learned"], "task": ["image"]})
    assert {cell.values["setting"] for cell in cells(lra, {})} == {"short", "learned", "dropout"}
    assert "path_x" not in {cell.values["task"] for cell in cells(lra, {"setting": ["papers"]})}
    assert cells(lra, {"setting": ["papers"], "task": ["path_x"], "method": ["lln"]})


def test_flags_that_a_setting_leaves_open_are_the_users(lra):
    asked = {"setting": ["papers"], "task": ["text"], "method": ["transnormer_t2"]}
    [cell] = cells(lra, asked, flags=["--max-update", "7"])
    assert cell.updates() == 7 and "--encoder-norm" in cell.own_flags()
    [other] = cells(lra, {**asked, "preset": ["lra_state_space"]})
    assert "--encoder-norm" not in other.own_flags()
    with pytest.raises(UserError, match="--max-update differs from cell to cell; use --setting"):
        cells(lra, {**asked, "setting": ["short"]}, flags=["--max-update", "7"])


TINY = """
about: a tiny study
config: CONFIG
axes: {method: {elu: {plan: elu}}}
checkpoint: best
evaluate: lra
table: {columns: [["accuracy, %", accuracy, ".2f"]]}
"""


@pytest.mark.slow
def test_without_a_valid_split_the_last_checkpoint_is_tested(call, refused, tmp_path):
    data = write_lra(tmp_path / "image", "image", splits={"train": 24, "test": 11})
    config = tiny.write("lra_skyformer", tmp_path, data).config
    path, out = tmp_path / "tiny.yaml", tmp_path / "out"
    config.write_text(config.read_text().replace("listops", "image"))
    path.write_text(TINY.replace("CONFIG", str(config)))
    words = ("--data", data, "--", "--max-update", 3)
    call(study, path, "--out", out, *words)
    record = json.loads((out / "elu" / "seed5.json").read_text())
    assert record["found"]["examples"] == 11 and not record["found"]["chosen_on_valid"]
    assert record["training"]["updates"] == 3 and not record["found"]["published_sizes"]
    assert 0 <= record["found"]["most_frequent"] <= 100
    assert "--disable-validation" not in record["own_flags"]
    path.write_text(f"{path.read_text()}tune: {{axis: lr, values: [0.1], updates: 3}}\n")
    assert "has no valid split" in refused(study, path, "--out", tmp_path / "tuned", *words)
