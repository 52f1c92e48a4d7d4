"""An attention in a folder outside the project: trained, resumed, evaluated, in a study."""

import math

import pytest

from conventions import OWN_ATTENTIONS
from lab.errors import UserError
from lab.files import read_json
from lab.study import cli as study
from lab.study.cells import check_plan_words
from tests.helpers.logs import losses
from tests.lab.study.conftest import SHORT
from user_dir.attention.own import load_own
from user_dir.models.options import mechanism_fields


def test_an_attention_of_ones_own(own_attention, call, config, corpus, study_file, tmp_path):
    assert mechanism_fields(causal=True)["mine_power"].default == 2.0
    run = tmp_path / "run"
    words = [config, corpus, "--gpus", 0, "--save-dir", run, "--decoder-attention", "mine"]
    for last in (2, 4):
        call("scripts/train_lm.sh", *words, "--max-update", last)
    assert list(losses((run / "train.log").read_text())) == [1, 2, 3, 4]
    call("scripts/eval_ppl.sh", run / "checkpoint_last.pt", corpus)
    assert math.isfinite(read_json(run / "checkpoint_last.test.json")["perplexity_per_token"])

    study_file.write_text(study_file.read_text().replace("{plan: elu}", "{plan: mine}"))
    call(study, study_file, "--method", "elu", "--out", tmp_path / "out", "--", *SHORT)
    assert read_json(tmp_path / "out" / "tiny" / "elu" / "seed1.json")["found"]["loss_nats"] > 0


def test_what_cannot_be_loaded(own_attention, monkeypatch):
    (own_attention / "broken.py").write_text("import nothing_of_this_name\n")
    with pytest.raises(UserError, match=r"broken\.py cannot be imported: ModuleNotFoundError: No module"):
        load_own()
    (own_attention / "broken.py").write_text("")
    with pytest.raises(UserError, match=r"broken\.py registers no attention 'broken'; name the file"):
        load_own()
    monkeypatch.setenv(OWN_ATTENTIONS, str(own_attention / "none"))
    for read in (load_own, lambda: check_plan_words("mine", 2, "a cell")):
        with pytest.raises(UserError, match=f"{OWN_ATTENTIONS}: .* is not a folder"):
            read()
