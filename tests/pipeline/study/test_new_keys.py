"""Keys of a study's YAML: start, best, data, settings, keep; the choices' seeds and on_request."""

from pathlib import Path

import pytest

from pipeline.errors import UserError
from pipeline.study.cells import Cell
from pipeline.study.declaration import read_study
from pipeline.study.run import prepare_data
from pipeline.study.worker import prune
from tests.pipeline.study.conftest import cells

STUDY = """
about: A study
config: configs/copy/tiny.yaml
axes:
  method: {{elu: {{plan: elu, seeds: 1}}, softmax: {{plan: softmax}}, slow: {{plan: lln, on_request: true}}}}
  lr: [0.1, 0.2]
seeds: 2
evaluate: copy
table: {{rows: [method, lr], columns: [[loss, loss_nats, ".2f"]]}}
{further}
"""


def study(folder: Path, further: str = "", name: str = "own"):
    path = folder / f"{name}.yaml"
    path.write_text(STUDY.format(further=further))
    return read_study(path)


def own_cells(folder: Path, further: str = "", asked=None, data=None) -> list[Cell]:
    return cells(study(folder, further), asked, 2, out=folder / "out", data=data)


def test_seeds_and_choices_on_request(tmp_path):
    found = [(cell.values["method"], cell.values["lr"], cell.seed) for cell in own_cells(tmp_path)]
    assert len(found) == 6 and {name for name, *_ in found} == {"elu", "softmax"}
    first = min(seed for *_, seed in found)
    assert {seed for name, _, seed in found if name == "elu"} == {first}
    assert {seed for name, _, seed in found if name == "softmax"} == {first, first + 1}
    assert {cell.values["method"] for cell in own_cells(tmp_path, asked={"method": ["slow"]})} == {"slow"}


def test_settings_are_those_of_every_cell_and_decide(tmp_path):
    plain, further = own_cells(tmp_path), own_cells(tmp_path, "settings: {log_interval: 3}")
    assert all(cell.own_flags()[:2] == ["--log-interval", "3"] for cell in further)
    assert plain[0].fingerprint() != further[0].fingerprint()


def test_data_of_a_choice(tmp_path):
    (cell, *_) = own_cells(tmp_path, "data: data/some/{method}")
    assert cell.data_folder().parts[-3:] == ("data", "some", "elu")
    (cell, *_) = own_cells(tmp_path, "data: data/some/{method}", data=tmp_path)
    assert cell.data_folder() == tmp_path / "elu"


def test_raw_data_are_asked_for(tmp_path):
    found = own_cells(tmp_path, 'data: nowhere/{method}\nprepare: [glue.sh, "{source}", --dest, nowhere]')
    with pytest.raises(UserError, match="--source"):
        prepare_data(found[0].study, found, None)


@pytest.mark.parametrize("keep", ["measured", "all"])
def test_what_is_kept_of_a_run(tmp_path, keep):
    (cell, *_) = own_cells(tmp_path, f"keep: {keep}")
    cell.folder.mkdir(parents=True)
    names = ["checkpoint_1_5.pt", "checkpoint_last.pt"]
    for name in names:
        (cell.folder / name).touch()
    prune(cell)
    assert sorted(path.name for path in cell.folder.iterdir()) == (names if keep == "all" else names[1:])


@pytest.mark.parametrize(
    ("further", "message"),
    [
        ("best: {axis: rl, highest: loss_nats}", "no axis rl; did you mean lr"),
        ("best: {axis: lr}", "one of highest, lowest"),
        ("best: {axis: lr, highest: a, lowest: b}", "one of highest, lowest"),
        ("best: {axis: lr, highst: a}", "no key highst; did you mean highest"),
        ("start: copi", "names no study 'copi'; did you mean copy"),
        ("keep: some", "choose from measured, all"),
        ("settings: 3", "settings needs settings"),
        ("data: data/{task}", "data names {task}"),
    ],
)
def test_mistakes_are_named(tmp_path, further, message):
    with pytest.raises(UserError) as error:
        study(tmp_path, further)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_a_start_without_the_axes_of_its_study(tmp_path):
    (cell, *_) = own_cells(tmp_path, "start: roberta_glue")
    with pytest.raises(UserError, match="add it to the axes"):
        cell.fingerprint()


def test_settings_below_yaml_are_those_of_the_training_yaml(tmp_path):
    path = tmp_path / "own.yaml"
    path.write_text(STUDY.format(further="").replace("{plan: lln,", "{yaml: {model: {decoder_layers: 1}},"))
    one, two = (cells(read_study(path), {"method": [name]})[0] for name in ("slow", "softmax"))
    assert one.experiment.get("model", "decoder_layers") == 1 != two.experiment.get("model", "decoder_layers")
    assert one.experiment.get("model", "_name") == two.experiment.get("model", "_name")
    assert "--decoder-layers" not in one.own_flags() and one.fingerprint() != two.fingerprint()
    with pytest.raises(UserError, match="--decoder-layers differs from cell to cell; use --method"):
        cells(read_study(path), {"method": ["slow"]}, flags=("--decoder-layers", "3"))


@pytest.mark.parametrize("given", ["3", "{model: 3}", "[model]"])
def test_what_is_below_yaml_are_groups(tmp_path, given):
    (tmp_path / "own.yaml").write_text(STUDY.format(further="").replace("{plan: lln,", f"{{yaml: {given},"))
    with pytest.raises(UserError, match="method.slow.yaml needs groups"):
        read_study(tmp_path / "own.yaml")
