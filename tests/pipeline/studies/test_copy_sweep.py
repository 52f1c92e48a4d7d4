"""measure_copy.sh: models learn to copy, runs resume and are made once, and what bad input gets."""

import json

import pytest
import torch

from pipeline.evaluation.copying import write_on
from pipeline.files import ROOT
from pipeline.reports.copying import converged, read_results, write_copy_table
from pipeline.sequence_methods import choose_methods
from pipeline.studies import copy_sweep, measured_cell
from pipeline.training.recipe import read_experiment
from tests.helpers.lm import PAD, build_lm
from tests.helpers.two_processes import assert_two_train_as_one

SHORT = ["--preset", "tiny", "--train-samples", 160, "--eval-samples", 40, "--log-interval", 1]


def result(folder, method):
    return json.loads((folder / method / "seed1.json").read_text())


@pytest.mark.longest
@pytest.mark.slow
def test_softmax_and_linear_learn_to_copy(call, tmp_path, capsys):
    options = ("--preset", "tiny", "--attention", "softmax,elu", "--out", tmp_path)
    call(copy_sweep, *options, "--tokens-per-sample", 8, "--lr", 0.004, "--max-update", 450)
    for method in ("softmax", "elu"):
        found = result(tmp_path, method)
        assert converged(found) and found["free_exact"] > 0.99, found
        # The separator and up to two symbols of a sequence of 8.
        assert len(found["by_position"]) == 3 and len(found["free_by_position"]) == 2
        assert found["curves"]["train"][0][1] > 1.5
    assert "2 of 2" not in capsys.readouterr().out and (tmp_path / "copy.png").stat().st_size > 10_000


@pytest.mark.slow
def test_a_sweep_is_run_once_and_its_table_comes_from_its_json(call, refused, tmp_path, capsys, monkeypatch):
    words = [*SHORT, "--attention", "norm,reformer-1", "--out", tmp_path, "--max-update", 6]
    call(copy_sweep, *words)
    table = (tmp_path / "copy.md").read_text()
    assert table == write_copy_table(read_results(tmp_path)) + "\n"
    assert "NormAttention, T1" in table and "Reformer, 1 round |" in table and "0 of 1" in table
    found = result(tmp_path, "norm-t2")
    assert found["updates"] == 6 and found["examples"] == 40 and not found["loss_nats"] < 1
    monkeypatch.setattr(measured_cell, "run_fairseq", None)
    call(copy_sweep, *words)
    assert "3 runs, 3 done before" in capsys.readouterr().out
    sentence = refused(copy_sweep, *words, "--lr", "0.1")
    assert "was made with other settings" in sentence


@pytest.mark.slow
def test_a_killed_run_resumes_and_ends_as_if_nothing_had_happened(call, kill, tmp_path, capsys):
    words = [*SHORT, "--attention", "elu", "--max-update", 12]
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    call(copy_sweep, *words, "--out", whole)
    kill(copy_sweep, [*words, "--out", cut], cut / "elu/seed1/train.log", '"num_updates": "8"')
    assert not (cut / "elu/seed1.json").exists()
    capsys.readouterr()
    call(copy_sweep, *words, "--out", cut)
    assert "resuming from checkpoint_last.pt (update " in capsys.readouterr().out
    states = [
        torch.load(folder / "elu/seed1/checkpoint_last.pt", weights_only=True)["model"]
        for folder in (whole, cut)
    ]
    for name, value in states[0].items():
        torch.testing.assert_close(states[1][name], value, rtol=0, atol=0, msg=name)
    assert result(whole, "elu")["loss_nats"] == result(cut, "elu")["loss_nats"]


@pytest.mark.slow
def test_two_processes_train_what_one_with_twice_the_accumulation_trains(tmp_path):
    experiment = read_experiment(ROOT / "configs" / "copy" / "tiny.yaml")

    def flags(machines, save_dir, update_freq):
        words = ["--user-dir", str(ROOT / "user_dir"), *experiment.flags(), *machines.flags()]
        words += ["--decoder-attention", "elu", "--update-freq", update_freq, "--save-dir", str(save_dir)]
        words += ["--max-update", "4", "--disable-validation", "--batch-size", "8"]
        return [*words, "--train-samples", "64"]

    assert_two_train_as_one(flags, tmp_path)


@torch.no_grad()
def test_a_model_that_runs_freely_writes_what_it_finds_likeliest_row_by_row():
    model = build_lm("linear_transformer_lm", words=15, decoder_attention="elu,reformer")
    prompt = torch.tensor([[5, 6, 7, 4], [8, 9, 4, PAD]])
    written = write_on(model, prompt, torch.tensor([3, 2]))
    for row, length in ((0, 3), (1, 2)):
        text = prompt[row, : length + 1].tolist()
        for _ in range(length):
            text.append(int(model(torch.tensor([text]))[0][0, -1].argmax()))
        assert written[row, :length].tolist() == text[length + 1 :]


def test_names_of_attentions():
    assert choose_methods("reformer,elu,norm-t2,elu") == [
        "reformer-1",
        "reformer-4",
        "reformer-8",
        "elu",
        "norm-t2",
    ]
    assert len(choose_methods("all")) == 9 and choose_methods("norm") == ["norm-t1", "norm-t2"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--attention", "nrom"], "'nrom' is no attention of this command; choose all, or some of norm"),
        (["--seed", "3"], "--seed differs from run to run; use --seeds"),
        (["--reformer-rounds", "3"], "--reformer-rounds differs from run to run; use --attention"),
        (["--preset", "large"], "invalid choice: 'large'"),
        (["--seeds", "0"], "'0' is not a whole number of 1 or more"),
    ],
)
def test_bad_input(refused, words, sentence):
    assert sentence in refused(copy_sweep, *words)


@pytest.mark.slow
def test_impossible_settings(refused, tmp_path):
    words = [*SHORT, "--attention", "elu", "--out", tmp_path, "--tokens-per-sample", 7]
    assert "--tokens-per-sample is 7; a copy needs 8 tokens or more" in refused(copy_sweep, *words)
