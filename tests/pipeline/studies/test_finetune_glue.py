"""finetune_glue.sh on all nine tasks: runs, results, table; and what bad input gets."""

import json
import re
import shutil

import numpy as np
import pytest
import torch

from pipeline.console import number_of
from pipeline.evaluation.classification import decide, predict, read_rows, read_targets, score
from pipeline.files import RUN_MARK
from pipeline.glue_tasks import TASKS
from pipeline.papers import read_table
from pipeline.reports import glue as glue_table
from pipeline.studies import glue_record
from pipeline.studies import glue_sweep as finetune_glue
from pipeline.training.encoder_checkpoint import load_encoder, read_dictionary, read_encoder
from pipeline.training.process.progress import read_records
from tests.helpers import encoders
from tests.helpers.encoders import ROWS
from tests.pipeline.training.test_train import Evil


def read(path):
    return json.loads(path.read_text())


@pytest.mark.parametrize("name", TASKS)
def test_every_task_trains_and_is_evaluated(finetuned, glue, name):
    """The result is that of the weights that were kept, over the whole dev set."""
    folder = finetuned / name / "lr0.01-seed1"
    result, task = read(folder / "result.json"), TASKS[name]
    assert result["task"] == name and result["updates"] == 3 and result["seed"] == 1
    assert set(result["dev"]) == set(task.dev_splits)
    dictionary = read_dictionary(folder)
    model = load_encoder(read_encoder(folder / "checkpoint_best.pt"), dictionary)
    for split in task.dev_splits:
        rows = read_rows(glue / name, split, dictionary)
        assert len(rows) == ROWS[split]
        targets = read_targets(glue / name, split, task)
        expected = score(task, decide(task, predict(model, rows, dictionary.pad())), targets)
        assert result["dev"][split] == expected and list(expected) == list(task.metrics)


@pytest.mark.parametrize("name", ["CoLA", "MRPC", "STS-B", "MNLI"])
def test_result_is_what_fairseq_found(finetuned, name):
    """fairseq's own figure of the best epoch, rounded as it rounds; of MNLI that of the matched set."""
    folder = finetuned / name / "lr0.01-seed1"
    key = {"CoLA": "valid_mcc", "MRPC": "valid_f1", "STS-B": "valid_pearson", "MNLI": "valid_accuracy"}[name]
    with (folder / "train.log").open() as log:
        found = [record[key] for kind, record in read_records(log) if kind == "valid"]
    task = TASKS[name]
    ours = read(folder / "result.json")["dev"]["valid"][task.metrics[0]]
    assert ours == pytest.approx(max(found), abs=0.051)


@pytest.mark.filterwarnings("ignore:An input array is constant")
def test_metrics():
    """By hand: two true positives, one false one, one true negative; and a correlation of 1/2."""
    predictions, targets = np.array([1, 1, 1, 0]), np.array([1, 1, 0, 0])
    assert score(TASKS["MRPC"], predictions, targets) == {"f1": 80.0, "accuracy": 75.0}
    assert score(TASKS["QQP"], predictions, targets) == {"accuracy": 75.0, "f1": 80.0}
    assert score(TASKS["CoLA"], predictions, targets) == {"matthews": 57.735, "accuracy": 75.0}
    scores = score(TASKS["STS-B"], np.array([1.0, 2.0, 3.0]), np.array([1.0, 3.0, 2.0]))
    assert scores == {"pearson": 50.0, "spearman": 50.0}
    constant = score(TASKS["STS-B"], np.array([1.0, 1.0]), np.array([1.0, 3.0]))
    assert constant == {"pearson": 0.0, "spearman": 0.0}


def test_folder_of_a_run_is_complete(finetuned, glue, pretrained):
    folder = finetuned / "RTE" / "lr0.01-seed1"
    names = {path.name for path in folder.iterdir()}
    kept = {"dict.txt", "sentencepiece.bpe.model", "checkpoint_best.pt", "train.log", "glue_task.json"}
    assert names == {*kept, "result.json", RUN_MARK}
    assert (folder / "dict.txt").read_bytes() == (pretrained / "dict.txt").read_bytes()
    assert read(folder / "glue_task.json") == {"task": "RTE", "tokenizer": "sentencepiece", "partial": True}


def test_weights_start_from_the_encoder(finetuned, pretrained):
    """Three updates leave the weights near the checkpoint's: independent ones are at a distance of 1.4."""
    before, after = (
        torch.load(path, weights_only=True)["model"]
        for path in (pretrained / "checkpoint_last.pt", finetuned / "RTE/lr0.01-seed1/checkpoint_best.pt")
    )
    layer = "encoder.sentence_encoder.layers.0."
    names = [name for name in before if name.startswith(layer) and before[name].dim() == 2]
    assert len(names) > 5
    for name in names:
        moved = (after[name] - before[name]).norm() / before[name].norm()
        assert 0 < moved < 1, name


def test_record_and_table(finetuned):
    record = read(finetuned / "glue.json")
    assert record["architecture"] == "roberta_transnormer_t1" and record["pretraining_updates"] == 4
    assert set(record["tasks"]) == set(TASKS)
    for name, task in record["tasks"].items():
        assert task["partial"] is True and task["examples"]["train"] == ROWS["train"]
        (cell,) = task["cells"]
        assert task["best"]["learning_rate"] == 0.01 and task["best"]["seeds"] == [1]
        for split, metrics in task["best"]["dev"].items():
            for metric, figures in metrics.items():
                value = cell["dev"][split][metric]
                assert figures == {"mean": value, "lowest": value, "highest": value}, name
    assert set(record["tasks"]["STS-B"]["best"]["dev"]["valid"]) == {"pearson", "spearman"}
    lines = (finetuned / "glue.md").read_text().splitlines()
    header, _, ours, *rest = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    titles = ["MNLI m, accuracy", "MNLI mm, accuracy", "QNLI, accuracy", "QQP, accuracy", "SST-2, accuracy",
              "MRPC, f1", "CoLA, matthews", "STS-B, pearson", "RTE, accuracy", "WNLI, accuracy"]  # fmt: skip
    assert header == ["", "million parameters", *titles, *glue_table.AVERAGES]
    assert ours[0] == "roberta_transnormer_t1, here"
    assert ours[1] == f"{record['parameters'] / 1e6:.2f}"
    assert ours[3] == f"{record['tasks']['MNLI']['cells'][0]['dev']['valid1']['accuracy']:.2f}*"
    assert all(re.fullmatch(r"-?[\d.]+\*", figure) for figure in ours[2:])
    papers = {row[0]: row[1:] for row in rest if len(row) > 1}
    t1 = next(row for row in read_table("transnormer_05_glue") if row["method"] == "TransNormer T1")
    figures = [t1[key] for key in ("mnli_m", "mnli_mm", "qnli", "qqp", "sst2", "mrpc", "cola")]
    expected = [t1["params_m"], *figures, *"–––", t1["avg"], "–"]
    assert papers["TransNormer T1 (TransNormer, Table 5)"] == expected
    lln = next(row for row in read_table("lln_01_glue") if row["method"] == "LLN+Diag")
    expected = ["–", lln["mnli"], "–", lln["qnli"], lln["qqp"], lln["sst2"], *"–––––", "–", lln["avg"]]
    assert papers["LLN+Diag (LLN, Table 1)"] == expected
    assert lines[-1].startswith("* Parts of CoLA, SST-2, MRPC, STS-B, QQP, MNLI, QNLI, RTE, WNLI only")


def test_best_is_the_rate_with_the_best_mean(finetuned, glue):
    """Not that of the best single run; the weights that are kept are the best run's."""
    data = finetune_glue.TaskData(TASKS["RTE"], glue / "RTE", read(glue / "RTE" / "preparation.json"))
    runs = {(0.1, 1): 60.0, (0.1, 2): 62.0, (0.2, 1): 50.0, (0.2, 2): 70.0}
    cells = [
        {"task": "RTE", "learning_rate": rate, "seed": seed, "dev": {"valid": {"accuracy": value}}}
        for (rate, seed), value in runs.items()
    ]
    best = glue_record.best_of(data, cells)
    assert best["learning_rate"] == 0.1 and best["seeds"] == [1, 2]
    assert best["dev"]["valid"]["accuracy"] == {"mean": 61.0, "lowest": 60.0, "highest": 62.0}
    assert glue_record.best_setting({"best": best, "cells": cells}) == (0.2, 2)
    record = {
        "architecture": "a",
        "parameters": 5_000_000,
        "tasks": {"RTE": {"partial": False, "best": best, "cells": cells}},
    }
    table = glue_table.write_table(record)
    assert "| a, here | 5.00 | 61.00 (60.00 to 62.00) | – | – |" in table and "*" not in table
    assert len(table.splitlines()) == 5  # no paper has RTE: header, rule, our row, an empty line, a note


@pytest.mark.parametrize(("table", "which"), [("transnormer_05_glue", 0), ("lln_01_glue", 1)])
def test_averages_are_those_of_the_papers(table, which):
    """TransNormer rounds to two decimals; most rows of LLN are cut to one."""
    for row in read_table(table):
        excess = glue_table.paper_average(row, which) - float(row["avg"])
        assert -0.0051 < excess < (0.0051 if which == 0 else 0.1), row


def test_a_paper_without_any_of_the_tasks_is_left_out(finetuned):
    record = read(finetuned / "glue.json")
    record["tasks"] = {"CoLA": record["tasks"]["CoLA"]}
    table = glue_table.write_table(record)
    assert "TransNormer T2" in table and "1+elu" not in table and "(LLN, Table 1)" not in table


@pytest.fixture
def sweep(pretrained, glue, tmp_path):
    """The arguments of a sweep of one short run."""
    return [pretrained / "checkpoint_last.pt", "--data", glue, "--out", tmp_path / "out", "--task", "RTE",
            "--learning-rates", "0.01", "--seeds", "1", "--max-update", "1"]  # fmt: skip


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ("--task rt", "there is no GLUE task rt (did you mean RTE?)"),
        ("--task RTE,cola", "there is no GLUE task cola (did you mean CoLA?)"),
        ("--data /nowhere", "no folder /nowhere; prepare it with data-prep/glue.sh"),
        ("--out /proc/none", "/proc/none"),
        ("--seeds 0", "'0' is not one or several whole numbers above 0"),
        ("--learning-rates 0.1,x", "'0.1,x' is not one or several numbers above 0"),
        ("--jobs 0", "argument --jobs: '0' is not a whole number"),
        ("--max-update 0", "--max-update: '0' is not a whole number of 1 or more"),
        ("--no-such-flag", "unrecognized arguments: --no-such-flag"),
    ],
)
def test_impossible_sweeps(extra, message, refused, sweep, tmp_path):
    assert message in refused(finetune_glue, *sweep, *extra.split())
    assert not (tmp_path / "out").exists()


def test_tasks_that_do_not_fit(refused, sweep, glue, tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    assert f"{data / 'RTE'} is not prepared" in refused(finetune_glue, *sweep, "--data", data)
    assert "holds no prepared task" in refused(finetune_glue, *sweep, "--data", data, "--task", "all")
    shutil.copytree(glue / "RTE", data / "RTE")
    manifest = read(data / "RTE" / "preparation.json")
    manifest["tokenizer_fingerprint"] = "0"
    (data / "RTE" / "preparation.json").write_text(json.dumps(manifest))
    sentence = refused(finetune_glue, *sweep, "--data", data)
    assert "was trained with another tokeniser" in sentence and "--tokenizer-from" in sentence
    # Without the dictionary beside the checkpoint its size still tells.
    alone = tmp_path / "checkpoint_last.pt"
    shutil.copy(sweep[0], alone)
    lines = (data / "RTE" / "dict.txt").read_text().splitlines()
    (data / "RTE" / "dict.txt").write_text("\n".join(lines[:-1]) + "\n")
    assert "dict.txt is missing or not" in refused(finetune_glue, alone, *sweep[1:], "--data", data)
    manifest["files"]["dict.txt"] = (data / "RTE" / "dict.txt").stat().st_size
    (data / "RTE" / "preparation.json").write_text(json.dumps(manifest))
    assert "another tokeniser; prepare the task again" in refused(
        finetune_glue, alone, *sweep[1:], "--data", data
    )
    assert not (tmp_path / "out").exists()


def test_checkpoints_that_are_none(refused, sweep, tmp_path):
    def sentence(path):
        return refused(finetune_glue, path, *sweep[1:])

    path, trace = tmp_path / "given.pt", tmp_path / "trace"
    assert f"no checkpoint {path}" in sentence(path)
    path.write_bytes(sweep[0].read_bytes()[:-100])
    assert "is incomplete and there is no other checkpoint" in sentence(path)
    torch.save({"model": Evil(trace)}, path)
    assert "nothing in it was run" in sentence(path)
    assert not trace.exists()
    state = torch.load(sweep[0], weights_only=True)
    torch.save({**state, "model": {"decoder.embed_tokens.weight": torch.zeros(3, 4)}}, path)
    assert "holds no RoBERTa encoder" in sentence(path)
    model = {**state["cfg"]["model"], "_name": "roberta_transnormer_t9", "arch": "roberta_transnormer_t9"}
    torch.save({**state, "cfg": {**state["cfg"], "model": model}}, path)
    assert "no encoder of this project; did you mean roberta_transnormer_t" in sentence(path)
    assert not (tmp_path / "out").exists()


def test_half_of_the_checkpoint_and_a_whole_one_beside_it(call, sweep, pretrained, tmp_path, capsys):
    """An interrupted save of pre-training has left half of checkpoint_last.pt."""
    folder = tmp_path / "encoder"
    shutil.copytree(pretrained, folder)
    for name in ("checkpoint_last.pt", "checkpoint_1_4.pt"):
        (folder / name).write_bytes((folder / name).read_bytes()[:-100])
    call(finetune_glue, folder / "checkpoint_last.pt", *sweep[1:])
    assert "checkpoint_last.pt is incomplete; taking checkpoint_best.pt" in capsys.readouterr().out
    assert read(tmp_path / "out" / "RTE" / "lr0.01-seed1" / "result.json")["updates"] == 1


def test_long_examples_are_cut_and_counted(call, sweep, glue, tmp_path, capsys, encoder_corpus):
    raw, out = tmp_path / "raw", tmp_path / "out"
    shutil.copytree(glue.parent / "raw" / "RTE", raw / "RTE")
    with (raw / "RTE" / "dev.tsv").open("a") as file:
        file.write("entailment\t" + "The cat saw the dog . " * 20 + "\tThe cat .\n")
    options = ("--tokenizer-from", encoder_corpus, "--dest", tmp_path / "data", "--partial")
    encoders.prepare("glue", raw, *options)
    data = tmp_path / "data" / "RTE"
    dictionary = read_dictionary(data)
    rows = [row for split in ("train", "valid") for row in read_rows(data, split, dictionary)]
    count = sum(len(row) > 32 for row in rows)
    assert count > 0
    call(finetune_glue, *sweep, "--data", tmp_path / "data")
    sentence = f"{number_of(count, 'examples')} with more tokens than the 32 positions of the encoder"
    assert f"RTE: {sentence} will be cut" in capsys.readouterr().out
    accuracy = read(out / "RTE" / "lr0.01-seed1" / "result.json")["dev"]["valid"]["accuracy"]
    right = accuracy / 100 * (ROWS["valid"] + 1)  # the long one counts
    assert right == pytest.approx(round(right), abs=1e-4)
