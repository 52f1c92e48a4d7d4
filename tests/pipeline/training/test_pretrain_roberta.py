"""pretrain_roberta.sh: what it writes, going on after a kill, two processes; and eval_mlm.sh."""

import json
import math
import re
import shutil

import pytest
import torch

from pipeline.evaluation import eval_mlm
from pipeline.training import same_settings
from pipeline.training import train as train_lm
from pipeline.training.encoder_checkpoint import read_encoder
from pipeline.training.process.logged_run import run_fairseq
from pipeline.training.process.progress import read_records
from pipeline.training.recipe import read_experiment
from pipeline.training.train import Machines
from tests.helpers.two_processes import assert_two_train_as_one
from user_dir.models.roberta import RobertaEncoder

TRAIN_LM = "scripts/train_lm.sh"
PRETRAIN_ROBERTA = "scripts/pretrain_roberta.sh"
UPDATES = 40


def losses(folder):
    """The training loss of each update; what a resumed run repeats counts as it was the last time."""
    with (folder / "train.log").open() as log:
        return {int(r["num_updates"]): r["loss"] for kind, r in read_records(log) if kind == "train_inner"}


def weights(folder):
    return torch.load(folder / "checkpoint_last.pt", weights_only=True)["model"]


@pytest.fixture(scope="module")
def config(encoder_configs):
    return encoder_configs / "roberta_transnormer_t1.yaml"


@pytest.fixture(scope="module")
def uninterrupted(config, encoder_corpus, tmp_path_factory):
    """The losses of a run of 40 updates."""
    folder = tmp_path_factory.mktemp("runs") / "uninterrupted"
    train_lm.train(config, encoder_corpus, Machines(0), folder, ["--max-update", str(UPDATES), "--no-save"])
    return losses(folder)


def test_training_writes_checkpoints_log_curves_and_tokeniser(pretrained, encoder_corpus):
    assert list(losses(pretrained)) == [1, 2, 3, 4]
    names = {path.name for path in pretrained.iterdir()}
    assert {"checkpoint_last.pt", "checkpoint_best.pt", "train.log", "tensorboard"} <= names
    for name in ("dict.txt", "sentencepiece.bpe.model"):
        assert (pretrained / name).read_bytes() == (encoder_corpus / name).read_bytes()
    encoder = read_encoder(pretrained / "checkpoint_last.pt")
    assert (encoder.architecture, encoder.updates) == ("roberta_transnormer_t1", 4)


def test_it_learns(uninterrupted):
    values = list(uninterrupted.values())
    assert len(values) == UPDATES
    assert sum(values[-5:]) / 5 < 0.75 * values[0]


def test_stopped_and_carried_on(call, config, encoder_corpus, pretrained, uninterrupted, tmp_path):
    """The same losses, masks and dropout included, as without the stop; the first are not run again."""
    folder = tmp_path / "run"
    shutil.copytree(pretrained, folder)
    call(PRETRAIN_ROBERTA, config, encoder_corpus, "--gpus", 0, "--save-dir", folder, "--max-update", 10)
    assert losses(folder) == {update: uninterrupted[update] for update in range(1, 11)}
    assert (folder / "train.log").read_text().count('"num_updates": "4"') == 1


@pytest.mark.slow
def test_killed_and_carried_on(call, kill, config, encoder_corpus, uninterrupted, tmp_path):
    """`kill -9` between two checkpoints."""
    folder = tmp_path / "run"
    words = [config, encoder_corpus, "--gpus", 0, "--save-dir", folder, "--max-update", UPDATES]
    words += ["--save-interval-updates", 3]
    kill(PRETRAIN_ROBERTA, words, folder / "train.log", '"num_updates": "5"')
    reached = read_encoder(folder / "checkpoint_last.pt").updates
    assert 3 <= reached < UPDATES
    call(PRETRAIN_ROBERTA, *words)
    expected = {update: uninterrupted[update] for update in range(reached + 1, UPDATES + 1)}
    assert losses(folder) == expected


@pytest.mark.slow
def test_running_averages_are_carried_on(call, encoder_configs, encoder_corpus, tmp_path):
    """Those of LLN's moment matching, with which validation computes, are in the checkpoint."""
    config = encoder_configs / "roberta_lln_diag.yaml"
    for name, stops in (("whole", [4]), ("stopped", [2, 4])):
        for stop in stops:
            call(PRETRAIN_ROBERTA, config, encoder_corpus, "--gpus", 0, "--save-dir", tmp_path / name,
                 "--max-update", stop)  # fmt: skip
    whole, stopped = (weights(tmp_path / name) for name in ("whole", "stopped"))
    assert any(key.endswith("self_attn.scale.sigma") for key in whole)
    assert all(torch.equal(whole[key], stopped[key]) for key in whole)


@pytest.mark.slow
def test_two_processes_train_what_one_with_twice_the_accumulation_trains(config, encoder_corpus, tmp_path):
    experiment = read_experiment(config)
    words = ["--max-update", "4", "--dropout", "0", "--attention-dropout", "0", "--disable-validation"]

    def flags(machines, save_dir, update_freq):
        extra = [*words, "--update-freq", update_freq]
        return train_lm.fairseq_arguments(experiment, encoder_corpus, machines, save_dir, extra)

    assert_two_train_as_one(flags, tmp_path)
    assert all(read_encoder(tmp_path / name / "checkpoint_last.pt").updates == 4 for name in ("one", "two"))


def test_evaluation_forms_no_logits_of_a_batch(call, pretrained, encoder_corpus, tmp_path, monkeypatch):
    def output_layer(*_):
        raise AssertionError("all logits were asked for")

    monkeypatch.setattr(RobertaEncoder, "output_layer", output_layer)
    shutil.copy(pretrained / "checkpoint_last.pt", tmp_path)
    call(eval_mlm, tmp_path / "checkpoint_last.pt", encoder_corpus, "--split", "test")


def test_evaluation_agrees_with_fairseq_validate(call, pretrained, encoder_corpus, tmp_path, root, capsys):
    """The same masks, hence the same loss over the same number of tokens."""
    path = tmp_path / "checkpoint_last.pt"
    shutil.copy(pretrained / path.name, path)
    call(eval_mlm, path, encoder_corpus, "--split", "valid,test")
    said = capsys.readouterr().out
    words = [
        str(encoder_corpus),
        "--user-dir",
        f"{root}/user_dir",
        "--task",
        "masked_lm",
        "--path",
        str(path),
    ]
    words += ["--valid-subset", "valid,test", "--batch-size", "8", "--log-format", "json", "--cpu"]
    run_fairseq("validate", words, tmp_path / "validate.log")
    theirs = dict(re.findall(r'"(valid|test)_loss": "([0-9.]+)"', (tmp_path / "validate.log").read_text()))
    for split in ("valid", "test"):
        ours = json.loads(path.with_suffix(f".{split}.json").read_text())
        assert ours["loss_nats_per_token"] / math.log(2) == pytest.approx(float(theirs[split]), abs=6e-4)
        perplexity = ours["perplexity_per_token"]
        assert perplexity == pytest.approx(math.exp(ours["loss_nats_per_token"]))
        assert f"{split}: masked-LM perplexity {perplexity:.2f} over {ours['masked_tokens']:,}" in said
        assert ours["updates"] == 4 and ours["tokens_per_sample"] == 32


def test_evaluation_of_what_does_not_fit(refused, pretrained, encoder_corpus, tmp_path):
    path = pretrained / "checkpoint_last.pt"
    assert "has no split vaild; it has train" in refused(eval_mlm, path, encoder_corpus, "--split", "vaild")
    data = tmp_path / "data"
    shutil.copytree(encoder_corpus, data)
    (data / "preparation.json").unlink()
    with (data / "dict.txt").open("a") as file:
        file.write("more 1\n")
    assert "belongs to another tokeniser" in refused(eval_mlm, path, data)
    assert [path.name for path in pretrained.glob("*.json")] == [same_settings.DATA]


def test_yaml_of_the_other_command(refused, config, encoder_corpus, tmp_path):
    sentence = refused(TRAIN_LM, config, encoder_corpus, "--gpus", 0, "--save-dir", tmp_path / "run")
    assert "its task is masked_lm; train it with scripts/pretrain_roberta.sh" in sentence
    yaml = tmp_path / "lm.yaml"
    yaml.write_text("task: {_name: language_modeling}\n")
    sentence = refused(PRETRAIN_ROBERTA, yaml, encoder_corpus, "--gpus", 0)
    assert "is not for pretrain_roberta.sh" in sentence
    assert "train it with scripts/train_lm.sh" in sentence
    assert not (tmp_path / "run").exists()


def test_run_of_another_tokeniser(refused, config, encoder_corpus, pretrained, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(pretrained, folder)
    (folder / "sentencepiece.bpe.model").write_bytes(b"another")
    sentence = refused(PRETRAIN_ROBERTA, config, encoder_corpus, "--gpus", 0, "--save-dir", folder)
    assert "holds a run with another tokeniser" in sentence
    assert (folder / "checkpoint_last.pt").read_bytes() == (pretrained / "checkpoint_last.pt").read_bytes()
