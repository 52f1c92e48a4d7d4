"""train_lra.sh and lab.sh evaluate lra: records, leftovers of an earlier run, and data that do not fit."""

import json
import shutil

import numpy as np
import pytest
import torch

from lab.files import ROOT
from tests.helpers import tiny
from tests.helpers.lra import write_lra
from tests.helpers.tiny import losses

TRAIN_LRA, EVALUATE_LRA = "scripts/lab.sh train lra", "scripts/lab.sh evaluate lra"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return tiny.trained("lra_skyformer", tmp_path_factory)


@pytest.fixture
def run(made, tmp_path):
    """A copy of the run, to be spoilt."""
    return shutil.copytree(made.run, tmp_path / "copy")


@pytest.fixture
def words(made):
    """The command that trains, up to its data."""
    return TRAIN_LRA, made.config


def test_the_run_is_recorded(made):
    run = json.loads((made.run / "run.json").read_text())
    assert (run["preset"], run["steps"], run["seed"]) == ("lra_skyformer", made.updates, 5)
    assert run["data"]["origin"] == "generated" and run["data"]["task"] == "listops"
    assert run["data"]["examples"] == {"train": 24, "valid": 9, "test": 11}
    assert {"commit", "date", "hardware", "command"} <= run["environment"].keys()


def test_evaluation_counts_every_example(call, refused, made, tmp_path, capsys):
    checkpoint = made.run / "checkpoint_best.pt"
    for _ in range(2):  # its own result is replaced
        call(EVALUATE_LRA, checkpoint, made.data, "--out", tmp_path / "test.json")
    result = json.loads((tmp_path / "test.json").read_text())
    other = shutil.copytree(made.data, tmp_path / "other")
    manifest = json.loads((other / "preparation.json").read_text())
    (other / "preparation.json").write_text(json.dumps({**manifest, "origin": "published"}))
    assert "with data {'" in refused(EVALUATE_LRA, checkpoint, other, "--out", tmp_path / "test.json")
    assert result["examples"] == 11
    assert result["accuracy"] == pytest.approx(100 * result["correct"] / 11)
    assert (result["preset"], result["attention"], result["seed"]) == ("lra_skyformer", "softmax*2", 5)
    assert result["steps"] == made.updates and result["training_data"]["origin"] == "generated"
    assert result["options"] == {"encoder_embed_dim": 16, "encoder_ffn_embed_dim": 24}
    assert f"{result['accuracy']:.2f} % of 11 right (test)" in capsys.readouterr().out
    call(EVALUATE_LRA, checkpoint, made.data, "--split", "valid", "--out", tmp_path / "valid.json")
    valid = json.loads((tmp_path / "valid.json").read_text())
    kept = torch.load(checkpoint, weights_only=True)["extra_state"]["best"]
    assert valid["accuracy"] == pytest.approx(kept, abs=1e-4)


def test_data_of_another_task_or_pipeline(refused, words, made, run, tmp_path):
    image, checkpoint = write_lra(tmp_path / "image", "image"), made.run / "checkpoint_best.pt"
    wrong = "was trained on listops, but"
    assert wrong in refused(EVALUATE_LRA, checkpoint, image)
    end = ("--gpus", 0, "--save-dir", tmp_path / "run")
    assert wrong in refused(*words, image, *end, "--restore-file", checkpoint)
    assert "holds image, but the settings or the checkpoint are for listops" in refused(*words, image, *end)
    other = tiny.write("lra_state_space", tmp_path / "made")
    assert "prepared for the pipeline skyformer" in refused(TRAIN_LRA, other.config, made.data, *end)
    assert not (tmp_path / "run").exists()
    labels = shutil.copytree(made.data, tmp_path / "labels")
    np.save(labels / "train.label.npy", np.roll(np.load(made.data / "train.label.npy"), 1))
    assert "other training data" in refused(*words, labels, "--gpus", 0, "--save-dir", run)


def test_the_samples_of_a_batch_are_shared_by_processes(call, made, capsys):
    config = ROOT / "configs" / "lra_skyformer" / "listops.yaml"
    call(TRAIN_LRA, config, made.data, "--gpus", 0, "--cpu-processes", 4, "--dry-run")
    assert "--update-freq 1 --batch-size 8 " in capsys.readouterr().out


def test_what_a_failed_start_has_left_does_not_count(call, refused, words, made, tmp_path):
    """Data and dictionary of a run without a checkpoint are replaced; a stranger's are not."""
    other, folder = shutil.copytree(made.data, tmp_path / "other"), tmp_path / "run"
    lines = (made.data / "dict.txt").read_text().splitlines(True)
    (other / "dict.txt").write_text("".join(reversed(lines)))
    end = ("--gpus", 0, "--max-update", 3, "--save-dir", folder)
    refused(*words, other, *end, "--max-positions", 32)
    assert (folder / "dict.txt").read_bytes() == (other / "dict.txt").read_bytes()
    call(*words, made.data, *end)
    assert (folder / "dict.txt").read_bytes() == (made.data / "dict.txt").read_bytes()
    assert max(losses(folder)) == 3
    assert "another dictionary" in refused(*words, other, *end)
    for name in ("dict.txt", "data.json"):
        mine = tmp_path / f"with {name}" / name
        mine.parent.mkdir()
        mine.write_text("{}")
        assert "--save-dir" in refused(*words, made.data, *end[:-1], mine.parent)
        assert mine.read_text() == "{}"


@pytest.mark.parametrize("kind", ["lra_skyformer", "lra_state_space"])
def test_a_warm_up_longer_than_the_run_is_shortened(call, kind, tmp_path, capsys):
    config = tiny.write(kind, tmp_path, tmp_path).config
    own = config.read_text().replace("warmup_updates: 2, total_num_update: 40", "warmup_updates: 10")
    config.write_text(own)
    for last, expected in ((3, "2"), (11, None)):
        call(TRAIN_LRA, config, tmp_path, "--gpus", 0, "--dry-run", "--max-update", last)
        found = capsys.readouterr()
        assert (f"--warmup-updates {expected} " in found.out) == (expected is not None)
        assert ("--warmup-updates" in found.err) == (expected is not None)


def test_another_dictionary(call, refused, made, tmp_path):
    """The symbols and their order count, not how often each occurs."""
    other, checkpoint = shutil.copytree(made.data, tmp_path / "other"), made.run / "checkpoint_best.pt"
    lines = (made.data / "dict.txt").read_text().splitlines(True)
    (other / "dict.txt").write_text("".join(line.split()[0] + " 7\n" for line in lines))
    call(EVALUATE_LRA, checkpoint, other, "--out", tmp_path / "found.json")
    (other / "dict.txt").write_text("".join(reversed(lines)))
    assert "was trained; give the folder with that dictionary" in refused(EVALUATE_LRA, checkpoint, other)
