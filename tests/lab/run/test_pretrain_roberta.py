"""pretrain_roberta.sh: resuming and refusals; lab.sh evaluate mlm."""

import json
import math
import re
import shutil

import pytest
import torch

from lab.run.process import run_fairseq
from tests.helpers import tiny
from user_dir.models.roberta import RobertaEncoder

PRETRAIN_ROBERTA, EVAL_MLM = "scripts/pretrain_roberta.sh", "scripts/lab.sh evaluate mlm"


def weights(folder):
    return torch.load(folder / "checkpoint_last.pt", weights_only=True)["model"]


@pytest.mark.slow
def test_it_learns(encoder_corpus, tmp_path_factory):
    losses = list(tiny.losses(tiny.trained("masked_lm", tmp_path_factory, encoder_corpus).run).values())
    assert sum(losses[-5:]) / 5 < 0.75 * losses[0]


@pytest.mark.longest
@pytest.mark.slow
def test_a_shorter_run_carries_on(call, encoder_configs, encoder_corpus, tmp_path):
    """The same losses, masks and dropout included, each update once, and the same weights.

    Among these are the running averages of LLN's moment matching, with which validation computes.
    """
    config = encoder_configs / "roberta_lln_diag.yaml"
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    for run, last in ((whole, 10), (stopped, 4), (stopped, 10)):
        words = (config, encoder_corpus, "--gpus", 0, "--save-dir", run, "--max-update", last)
        call(PRETRAIN_ROBERTA, *words)
    assert tiny.losses(stopped) == tiny.losses(whole)
    assert (stopped / "train.log").read_text().count('"num_updates": "4"') == 1
    expected, found = weights(whole), weights(stopped)
    assert any(key.endswith("self_attn.scale.sigma") for key in expected)
    assert all(torch.equal(expected[key], found[key]) for key in expected)


def test_run_of_another_tokeniser(refused, encoder_configs, encoder_corpus, pretrained, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(pretrained, folder)
    (folder / "sentencepiece.bpe.model").write_bytes(b"another")
    config = encoder_configs / "roberta_transnormer_t1.yaml"
    sentence = refused(PRETRAIN_ROBERTA, config, encoder_corpus, "--gpus", 0, "--save-dir", folder)
    assert "holds a run with another tokeniser" in sentence
    assert (folder / "checkpoint_last.pt").read_bytes() == (pretrained / "checkpoint_last.pt").read_bytes()


def test_evaluation_forms_no_logits_of_a_batch(
    call, refused, pretrained, encoder_corpus, tmp_path, monkeypatch
):
    def output_layer(*_):
        raise AssertionError("all logits were asked for")

    monkeypatch.setattr(RobertaEncoder, "output_layer", output_layer)
    shutil.copy(pretrained / "checkpoint_last.pt", tmp_path)
    call(EVAL_MLM, tmp_path / "checkpoint_last.pt", encoder_corpus, "--split", "test")
    other = shutil.copytree(encoder_corpus, tmp_path / "other")
    sentence = refused(EVAL_MLM, tmp_path / "checkpoint_last.pt", other, "--split", "test")
    assert f"checkpoint_last.test.json holds another result, with data {encoder_corpus} instead" in sentence


def test_evaluation_agrees_with_fairseq_validate(call, pretrained, encoder_corpus, tmp_path, root, capsys):
    """The same masks, hence the same loss over the same number of tokens."""
    path = tmp_path / "checkpoint_last.pt"
    shutil.copy(pretrained / path.name, path)
    call(EVAL_MLM, path, encoder_corpus, "--split", "valid,test")
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
