"""Keys of a study's YAML: start, data, settings, keep; the choices' seeds and on_request."""

from collections.abc import Callable

import pytest

from lab.errors import UserError
from lab.study.cells import prune
from lab.study.preparation import prepare_data
from lab.study.weights import keep_best_weights
from tests.lab.study.conftest import cells, record_of, write_record

METHODS = {
    "elu": {"plan": "elu", "seeds": 1},
    "softmax": {"plan": "softmax"},
    "slow": {"plan": "lln", "on_request": True},
    "shallow": {"yaml": {"model": {"decoder_layers": 1}}, "on_request": True},
}
KEYS = {
    "config": "configs/copy/tiny.yaml",
    "axes": {"method": METHODS, "lr": [0.1, 0.2]},
    "table": {"rows": ["method", "lr"], "columns": [["loss", "loss_nats", ".2f"]]},
    "claims": [],
}


@pytest.fixture
def own_cells(study_with, tmp_path) -> Callable[..., list]:
    """The cells of two seeds of a study with further keys; `options` belong to the command."""

    def find(asked=None, options=(), **further):
        return cells(study_with(**{**KEYS, **further}), asked, 2, out=tmp_path / "out", **dict(options))

    return find


def test_seeds_and_choices_on_request(own_cells):
    found = [(cell.values["method"], cell.values["lr"], cell.seed) for cell in own_cells()]
    assert len(found) == 6 and {name for name, *_ in found} == {"elu", "softmax"}
    first = min(seed for *_, seed in found)
    assert {seed for name, _, seed in found if name == "elu"} == {first}
    assert {seed for name, _, seed in found if name == "softmax"} == {first, first + 1}
    assert {cell.values["method"] for cell in own_cells({"method": ["slow"]})} == {"slow"}


def test_equal_numbers_are_one_choice_of_an_open_axis(own_cells):
    asked = {"method": ["elu"], "lr": ["1e-1", "0.10", "0.3", ".2"]}
    assert [cell.values["lr"] for cell in own_cells(asked)] == ["0.1", "0.3", "0.2"]
    with pytest.raises(UserError, match="no such choice"):
        own_cells(asked, axes={"method": METHODS, "lr": {"0.1": {"lr": 0.1}, "0.2": {"lr": 0.2}}})


def test_settings_are_those_of_every_cell_and_decide(own_cells):
    plain, further = own_cells(), own_cells(settings={"log_interval": 3})
    assert all(cell.own_flags()[:2] == ["--log-interval", "3"] for cell in further)
    assert plain[0].fingerprint() != further[0].fingerprint()


def test_data_of_a_choice(own_cells, tmp_path):
    (cell, *_) = own_cells(data="data/some/{method}")
    assert cell.data_folder().parts[-3:] == ("data", "some", "elu")
    (cell, *_) = own_cells(data="data/some/{method}", options={"data": tmp_path})
    assert cell.data_folder() == tmp_path / "elu"


def test_raw_data_are_asked_for(own_cells):
    found = own_cells(data="nowhere/{method}", prepare=["glue.sh", "{source}", "--dest", "nowhere"])
    with pytest.raises(UserError, match="--source"):
        prepare_data(found, None)


@pytest.mark.parametrize("keep", ["measured", "all"])
def test_what_is_kept_of_a_run(own_cells, keep):
    (cell, *_) = own_cells(keep=keep)
    cell.folder.mkdir(parents=True)
    names = ["checkpoint_1_5.pt", "checkpoint_last.pt"]
    for name in names:
        (cell.folder / name).touch()
    prune(cell)
    assert sorted(path.name for path in cell.folder.iterdir()) == (names if keep == "all" else names[1:])


@pytest.mark.parametrize("keep", ["measured", "all"])
def test_what_is_kept_of_the_runs_that_are_not_the_best(own_cells, keep):
    best = {"axis": "lr", "lowest": "loss_nats"}
    found = own_cells({"method": ["softmax"]}, best=best, keep=keep)
    for cell in found:
        loss = float(cell.values["lr"]) + cell.seed
        write_record(cell, record_of(cell.key, {"loss_nats": loss}, **cell.measurement()))
        cell.folder.mkdir(parents=True)
        (cell.folder / "checkpoint_last.pt").touch()
    keep_best_weights(found[0].study.best, found)
    left = [cell for cell in found if cell.run.is_begun]
    assert left == (found if keep == "all" else found[:1])


@pytest.mark.parametrize("earlier", [0.0, 9.0], ids=["better", "worse"])
def test_runs_of_earlier_settings_keep_their_weights_and_take_no_others(own_cells, earlier):
    best = {"axis": "lr", "lowest": "loss_nats"}
    asked = {"method": ["softmax"]}
    before, *_ = own_cells(asked, best=best, settings={"dropout": 0.5})
    now = [cell for cell in own_cells(asked, best=best, settings=None) if cell.seed != before.seed]
    for cell, loss in ((before, earlier), (now[0], 2.0), (now[1], 1.0)):
        write_record(cell, record_of(cell.key, {"loss_nats": loss}, **cell.measurement()))
        cell.folder.mkdir(parents=True)
        (cell.folder / "checkpoint_last.pt").touch()
    keep_best_weights(now[0].study.best, now)
    assert [cell.run.is_begun for cell in (before, *now)] == [True, False, True]


def test_a_start_without_the_axes_of_its_study(own_cells):
    (cell, *_) = own_cells(start="roberta_glue")
    with pytest.raises(UserError, match="add it to the axes"):
        cell.fingerprint()


def test_a_start_is_not_tuned(own_cells):
    (cell, *_) = own_cells(start="lm_tuned", axes={**KEYS["axes"], "method": {"transformer_lm": {}}})
    with pytest.raises(UserError, match="start: the study lm_tuned tunes lr"):
        cell.fingerprint()


def test_settings_of_every_cell_may_be_below_yaml(own_cells):
    (cell, *_) = own_cells(settings={"yaml": {"model": {"decoder_layers": 1}}})
    assert cell.experiment.get("model", "decoder_layers") == 1 and "--yaml" not in cell.own_flags()


def test_settings_below_yaml_are_those_of_the_training_yaml(own_cells):
    one, two = (own_cells({"method": [name]})[0] for name in ("shallow", "softmax"))
    assert one.experiment.get("model", "decoder_layers") == 1 != two.experiment.get("model", "decoder_layers")
    assert one.experiment.get("model", "_name") == two.experiment.get("model", "_name")
    assert "--decoder-layers" not in one.own_flags() and one.fingerprint() != two.fingerprint()
    with pytest.raises(UserError, match="--decoder-layers differs from cell to cell; use --method"):
        own_cells({"method": ["shallow"]}, {"flags": ("--decoder-layers", "3")})
