"""finetune_glue.sh on all nine tasks: runs, results, table; and bad input."""

import json
import re
import shutil

import numpy as np
import pytest
import torch

from lab.commands import finetune_glue
from lab.console import number_of
from lab.errors import UserError
from lab.files import RUN_MARK, read_json
from lab.glue_tasks import TASKS
from lab.measure.glue import decide, predict, read_rows, read_targets, score
from lab.options.train import finetuning
from lab.papers import read_table
from lab.publish import encoders as glue_table
from lab.publish.html import Table, markdown_parts
from lab.run.checkpoint import load_encoder, read_dictionary, read_encoder
from lab.run.log import log_entries
from lab.run.recipe import option
from lab.study.cells import Cell
from lab.study.declaration import read_best, read_study
from lab.study.records import best_records
from lab.study.weights import keep_best_weights
from tests.helpers import encoders
from tests.helpers.encoders import ROWS
from tests.helpers.evil import Evil
from tests.lab.study.conftest import cells, glue_cell, record_of, write_record

RUN = "0.01/seed1"
FIRST, *OTHERS = TASKS  # the first waits until all nine are trained


@pytest.mark.parametrize("name", [pytest.param(FIRST, marks=pytest.mark.longest), *OTHERS])
def test_every_task_trains_and_is_evaluated(finetuned, glue, name):
    """The result is the kept weights', over the whole dev set."""
    folder = finetuned / name / RUN
    record, task = read_json(finetuned / name / f"{RUN}.json"), TASKS[name]
    result = record["found"]
    assert record["cell"] == {"task": name, "lr": "0.01", "seed": 1} and result["task"] == name
    assert record["training"]["updates"] == 3 and result["learning_rate"] == 0.01
    assert set(result["dev"]) == set(task.dev_splits)
    dictionary = read_dictionary(folder)
    model = load_encoder(read_encoder(folder / "checkpoint_best.pt"), dictionary)
    for split in task.dev_splits:
        rows = read_rows(glue / name, split, dictionary)
        assert len(rows) == ROWS[split]
        targets = read_targets(glue / name, split, task)
        expected = score(task, decide(task, predict(model, rows, dictionary.pad())), targets)
        assert result["dev"][split] == expected and list(expected) == list(task.metrics)
    assert result["score"] == result["dev"]["valid"][task.metrics[0]]
    if task.is_regression:
        assert result["majority"] is None
    else:
        train, dev = (read_targets(glue / name, split, task) for split in ("train", "valid"))
        guess = np.full_like(dev, max(set(train.tolist()), key=train.tolist().count))
        assert result["majority"] == {
            **score(task, guess, dev),
            "score": score(task, guess, dev)[task.metrics[0]],
        }


@pytest.mark.parametrize("name", ["CoLA", "MRPC", "STS-B", "MNLI"])
def test_result_is_what_fairseq_found(finetuned, name):
    """fairseq's own figure of the best epoch, rounded as it rounds; for MNLI the matched set's."""
    folder = finetuned / name / RUN
    key = {"CoLA": "valid_mcc", "MRPC": "valid_f1", "STS-B": "valid_pearson", "MNLI": "valid_accuracy"}[name]
    with (folder / "train.log").open() as log:
        found = [record[key] for kind, record in log_entries(log) if kind == "valid"]
    ours = read_json(folder.with_suffix(".json"))["found"]["score"]
    assert ours == pytest.approx(max(found), abs=0.051)


def test_folder_of_a_run_is_complete(finetuned, glue, pretrained):
    folder = finetuned / "RTE" / RUN
    names = {path.name for path in folder.iterdir()}
    kept = "dict.txt sentencepiece.bpe.model data.json glue_task.json checkpoint_best.pt train.log"
    assert names == {*kept.split(), "tensorboard", ".run.lock", RUN_MARK}
    assert (folder / "dict.txt").read_bytes() == (pretrained / "dict.txt").read_bytes()
    assert read_json(folder / "glue_task.json") == {
        "task": "RTE",
        "tokenizer": "sentencepiece",
        "partial": True,
    }


def test_weights_start_from_the_encoder(finetuned, pretrained):
    """Three updates leave the weights near the checkpoint's: independent ones are at a distance of 1.4."""
    before, after = (
        torch.load(path, weights_only=True)["model"]
        for path in (pretrained / "checkpoint_last.pt", finetuned / "RTE" / RUN / "checkpoint_best.pt")
    )
    layer = "encoder.sentence_encoder.layers.0."
    names = [name for name in before if name.startswith(layer) and before[name].dim() == 2]
    assert len(names) > 5
    for name in names:
        moved = (after[name] - before[name]).norm() / before[name].norm()
        assert 0 < moved < 1, name


def records_of(out):
    return [read_json(path) for path in sorted(out.glob("*/*/seed*.json"))]


def test_page_has_our_row_and_the_papers(finetuned):
    found = {record["found"]["task"]: record["found"] for record in records_of(finetuned)}
    assert found.keys() == TASKS.keys()
    for one in found.values():
        assert one["architecture"] == "roberta_transnormer_t1" and one["pretraining_updates"] == 4
        assert one["partial"] is True and one["examples"]["train"] == ROWS["train"]
    page = (finetuned / "README.md").read_text()
    tables = [part for part in markdown_parts(page) if isinstance(part, Table)]
    [table] = [table for table in tables if "million parameters" in table.header]
    ours, guess, *rest = table.rows
    titles = [
        "MNLI m, accuracy",
        "MNLI mm, accuracy",
        "QNLI, accuracy",
        "QQP, accuracy / f1",
        "SST-2, accuracy",
        "MRPC, f1 / accuracy",
        "CoLA, matthews / accuracy",
        "STS-B, pearson / spearman",
        "RTE, accuracy",
        "WNLI, accuracy",
    ]
    assert table.header == ["", "million parameters", *titles, *glue_table.AVERAGES]
    assert ours[0] == "roberta_transnormer_t1, here"
    assert ours[1] == f"{found['RTE']['parameters'] / 1e6:.2f}"
    assert ours[3] == f"{found['MNLI']['dev']['valid1']['accuracy']:.2f}*"
    assert all(re.fullmatch(r"-?[\d.]+( / -?[\d.]+)?\*", figure) for figure in ours[2:])
    assert guess[0] == "the most frequent class" and guess[3] == guess[9] == "–"
    assert guess[6] == f"{found['SST-2']['majority']['accuracy']:.2f}"
    papers = {row[0]: row[1:] for row in rest}
    t1 = next(row for row in read_table("transnormer_05_glue") if row["method"] == "TransNormer T1")
    figures = [t1[key] for key in ("mnli_m", "mnli_mm", "qnli", "qqp", "sst2", "mrpc", "cola")]
    expected = [t1["params_m"], *figures, *"–––", t1["avg"], "–"]
    assert papers["TransNormer T1 (TransNormer, Table 5)"] == expected
    lln = next(row for row in read_table("lln_01_glue") if row["method"] == "LLN+Diag")
    expected = ["–", lln["mnli"], "–", lln["qnli"], lln["qqp"], lln["sst2"], *"–––––", "–", lln["avg"]]
    assert papers["LLN+Diag (LLN, Table 1)"] == expected
    assert "* Parts of CoLA, " in page and "WNLI only: these figures cannot be compared" in page


def test_averages_of_fewer_figures_say_so():
    """1+elu's average counts a missing figure as 0, Reformer's is of three; Nyströmformer's has changes."""
    rows = {row[0]: row for row in glue_table.paper_rows(list(glue_table.COLUMNS))}
    elu = next(row for row in read_table("transnormer_05_glue") if row["method"] == "1+elu")
    six = [float(elu[name]) for name in glue_table.AVERAGED[0] if elu[name] != "-"]
    beside = f"{elu['avg']} (a run that did not converge counts as 0; {sum(six) / 6:.2f} over the other 6)"
    assert len(six) == 6 and rows["1+elu (TransNormer, Table 5)"][-2] == beside
    assert rows["1+elu (TransNormer, Table 5)"][2:4] == [elu["mnli_m"], elu["mnli_mm"]]
    averages = {row["method"]: row["avg"] for row in read_table("lln_01_glue")}
    for name in ("Reformer", "cosFormer", "Longformer"):
        assert rows[f"{name} (LLN, Table 1)"][-1] == f"{averages[name]} (of 3 tasks)"
    change = read_table("lln_01_glue_changes")[0]
    shown = rows["Nystromformer (LLN, Table 1)"]
    assert shown[-1] == f"{averages['Nystromformer']} ({change['avg']})" and f"({change['sst2']})" in shown[6]


def made_up(rate, seed, value, task="RTE"):
    found = {
        "task": task,
        "partial": False,
        "parameters": 5_000_000,
        "architecture": "a",
        "score": value,
        "dev": {"valid": {"accuracy": value}},
        "majority": None,
    }
    return {"cell": {"task": task, "lr": rate, "seed": seed}, "found": found}


def test_the_columns_and_averages_of_a_table():
    """Means over the seeds, of MNLI's two sets and of the tasks that each paper averages."""
    records = []
    for place, (task, split) in enumerate(glue_table.COLUMNS):
        for seed, more in enumerate((0.0, 1.0, 5.0)):  # whose mean is 2
            found = made_up("0.1", seed, 10 * place + more, task)
            dev = dict.fromkeys(TASKS[task].metrics, 10 * place + more)
            found["found"]["dev"] = {split: dev}
            records.append(found)
    header, _, row, *_ = glue_table.write_table(records).splitlines()
    cells = dict(zip(header.split(" | "), row.split(" | "), strict=True))
    assert cells["MNLI m, accuracy"] == "2.00 (0.00 to 5.00)"
    assert cells["MNLI mm, accuracy"] == "12.00 (10.00 to 15.00)"
    assert cells["QNLI, accuracy"] == "22.00 (20.00 to 25.00)"
    assert cells["average of 7, as TransNormer's"] == "32.00"  # the first seven
    assert cells["average of 4, as LLN's |"] == "24.50 |"  # MNLI m, QNLI, QQP and SST-2


def test_a_table_of_scores_alone_has_no_row_of_classes():
    found = made_up("0.1", 1, 61.0, "STS-B")
    found["found"]["dev"] = {"valid": dict.fromkeys(TASKS["STS-B"].metrics, 61.0)}
    assert "most frequent class" not in glue_table.write_table([found])


def test_best_is_the_rate_with_the_best_mean():
    """The rate with the best mean, not the best single run; all of its seeds are shown."""
    best = read_best({"axis": "lr", "highest": "score"}, {"task": None, "lr": None}, "here")
    runs = {("0.1", 1): 60.0, ("0.1", 2): 62.0, ("0.2", 1): 50.0, ("0.2", 2): 70.0}
    records = [made_up(rate, seed, value) for (rate, seed), value in runs.items()]
    kept = best_records(best, records)
    assert [(one["cell"]["lr"], one["cell"]["seed"]) for one in kept] == [("0.1", 1), ("0.1", 2)]
    assert kept[0]["best"] == ["0.1", "0.2"]
    table = glue_table.write_table(kept)
    assert "| a, here | 5.00 | 61.00 (60.00 to 62.00) | – | – |" in table and "*" not in table
    assert "TransNormer T1" not in table.split("\n\n")[0]  # no paper has RTE
    lowest = read_best({"axis": "lr", "lowest": "score"}, {"task": None, "lr": None}, "here")
    assert {one["cell"]["lr"] for one in best_records(lowest, records)} == {"0.2"}


def test_best_compares_over_the_seeds_that_all_choices_have():
    """A rate that was not repeated wins by the seed it has; without a common seed the own means decide."""
    best = read_best({"axis": "lr", "highest": "score"}, {"task": None, "lr": None}, "here")
    repeated = [made_up("0.1", seed, value) for seed, value in ((1, 62.0), (2, 55.0), (3, 54.0))]
    assert len(best_records(best, [*repeated, made_up("0.2", 1, 61.0)])) == 3
    assert [one["cell"]["lr"] for one in best_records(best, [*repeated, made_up("0.2", 1, 63.0)])] == ["0.2"]
    assert [one["cell"]["lr"] for one in best_records(best, [*repeated, made_up("0.2", 4, 61.0)])] == ["0.2"]


def test_a_rate_named_twice_is_one(glue, pretrained):
    words = [str(pretrained / "checkpoint_last.pt"), "--task", "WNLI", "--data", str(glue)]
    options = finetuning([*words, "--seeds", "1", "--learning-rates", "1.2345678e-5,1e-05,1e-05"])
    found = finetune_glue.cells_asked(options)
    assert [(cell.seed, cell.values["lr"]) for cell in found] == [(1, "1.2345678e-05"), (1, "1e-05")]


def test_seeds_are_a_number_as_in_every_study(glue, pretrained, monkeypatch):
    monkeypatch.setattr(Cell, "first_seed", 7)
    words = [str(pretrained / "checkpoint_last.pt"), "--task", "WNLI", "--data", str(glue)]
    found = finetune_glue.cells_asked(finetuning([*words, "--seeds", "2", "--learning-rates", "0.01"]))
    assert [cell.seed for cell in found] == [7, 8]


def test_a_dry_run_with_flags(call, glue, pretrained, tmp_path, capsys):
    words = ["--task", "WNLI", "--data", glue, "--out", tmp_path / "out", "--lr", "0.01", "--seeds", 3]
    call(finetune_glue, pretrained / "checkpoint_last.pt", *words, "--dry-run", "--", "--dropout", 0.3)
    out = capsys.readouterr().out
    assert out.count("fairseq-train") == 3 and not (tmp_path / "out").exists()
    assert all(words in out for words in ("--lr 0.01", "--seed 3", "--dropout 0.3"))


@pytest.mark.parametrize("flag", ["--warmup-updates", "--best-checkpoint-metric"])
def test_flags_of_the_user_win_over_those_that_follow_from_the_task(glue, pretrained, flag):
    start = pretrained / "checkpoint_last.pt"
    cell = glue_cell(start, glue, flags=(flag, "7"))
    assert flag not in cell.data_flags() and option(cell.arguments(False), flag) == "7"
    with pytest.raises(UserError, match="--batch-size is 'x'"):
        glue_cell(start, glue, flags=("--batch-size", "x")).data_flags()


@pytest.mark.parametrize(("freq", "updates"), [("3", [2, 2, 2]), ("1,3", [5, 2, 2]), ("1,2,3,4", [5, 3, 2])])
def test_epochs_of_updates_that_take_several_batches(glue, pretrained, freq, updates):
    flags = ("--update-freq", freq, "--batch-size", str(-(-ROWS["train"] // 5)))
    cell = glue_cell(pretrained / "checkpoint_last.pt", glue, flags=flags)
    assert cell.updates() == sum(updates)
    assert option(cell.data_flags(), "--total-num-update") == str(sum(updates))


@pytest.mark.parametrize(
    "values", [(60.0, 70.0, 65.0), (60.0, 0.0, 65.0)], ids=["all finished", "one missing"]
)
def test_weights_of_the_best_run_are_kept_once_all_are_finished(tmp_path, values):
    (tmp_path / "start.pt").touch()
    asked, start = {"task": ["RTE"], "lr": ["0.1", "0.2", "0.3"]}, tmp_path / "start.pt"
    found = cells(read_study("glue"), asked, out=tmp_path / "out", data=tmp_path, start=start)
    for cell, value in zip(found, values, strict=True):
        cell.folder.mkdir(parents=True)
        (cell.folder / "checkpoint_best.pt").touch()
        (cell.folder / "train.log").touch()
        if value:
            write_record(cell, record_of(cell.key, made_up(cell.values["lr"], 1, value)["found"]))
    keep_best_weights(found[0].study.best, found)
    kept = [path.parts[-3] for path in sorted(tmp_path.rglob("checkpoint_best.pt"))]
    assert kept == (["0.2"] if all(values) else asked["lr"])
    assert len(list(tmp_path.rglob("train.log"))) == 3


def with_weights(cells_and_values):
    """Write a record and weights of each cell."""
    for cell, value in cells_and_values:
        cell.folder.mkdir(parents=True)
        (cell.folder / "checkpoint_best.pt").touch()
        write_record(cell, record_of(cell.key, made_up(cell.values["lr"], 1, value)["found"]))


@pytest.mark.parametrize(("first", "second", "best"), [(90.0, 50.0, 0), (50.0, 90.0, 1), (70.0, 70.0, 1)])
def test_the_best_of_all_commands_is_kept(first, second, best, tmp_path, capsys):
    (tmp_path / "start.pt").touch()
    study, places = read_study("glue"), {"out": tmp_path / "out", "data": tmp_path}
    found = cells(study, {"task": ["RTE"], "lr": ["3e-5", "1e-5"]}, start=tmp_path / "start.pt", **places)
    folders = [cell.folder for cell in found]
    with_weights([(found[0], first)])
    keep_best_weights(study.best, found[:1])
    assert capsys.readouterr().out.endswith(f"best weights in {folders[0]}\n")
    with_weights([(found[1], second)])
    keep_best_weights(study.best, found[1:])
    assert capsys.readouterr().out.endswith(f"best weights in {folders[best]}\n")
    assert [path.parent for path in tmp_path.rglob("checkpoint_best.pt")] == [folders[best]]


def test_weights_stay_where_those_of_the_best_run_are_gone(tmp_path, capsys):
    (tmp_path / "start.pt").touch()
    study, places = read_study("glue"), {"out": tmp_path / "out", "data": tmp_path}
    found = cells(study, {"task": ["RTE"], "lr": ["3e-5", "1e-5"]}, start=tmp_path / "start.pt", **places)
    with_weights(zip(found, (90.0, 50.0), strict=True))
    (found[0].folder / "checkpoint_best.pt").unlink()
    keep_best_weights(study.best, found)
    assert capsys.readouterr().out == ""
    assert [path.parent for path in tmp_path.rglob("checkpoint_best.pt")] == [found[1].folder]


@pytest.mark.parametrize(("table", "which"), [("transnormer_05_glue", 0), ("lln_01_glue", 1)])
def test_averages_are_those_of_the_papers(table, which):
    """TransNormer counts a dash as 0 and rounds to two decimals; most rows of LLN are cut to one."""
    for row in read_table(table):
        figures = [row[column] for column in glue_table.AVERAGED[which]]
        numbers = [float(figure) for figure in figures if figure != "-"]
        excess = sum(numbers) / len(figures if which == 0 else numbers) - float(row["avg"])
        assert -0.0051 < excess < (0.0051 if which == 0 else 0.1), row


def test_a_paper_without_any_of_the_tasks_is_left_out(finetuned):
    table = glue_table.write_table([one for one in records_of(finetuned) if one["found"]["task"] == "CoLA"])
    assert "TransNormer T2" in table and "1+elu" not in table and "(LLN, Table 1)" not in table


@pytest.fixture
def sweep(pretrained, glue, tmp_path):
    """The arguments of a sweep of one short run."""
    return [
        pretrained / "checkpoint_last.pt",
        "--data",
        glue,
        "--out",
        tmp_path / "out",
        "--task",
        "RTE",
        "--learning-rates",
        "0.01",
        "--seeds",
        "1",
        "--max-update",
        "1",
    ]


def test_tasks_that_do_not_fit(refused, sweep, glue, tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    assert f"{data / 'RTE'} is not prepared" in refused(finetune_glue, *sweep, "--data", data)
    assert "holds no prepared task" in refused(finetune_glue, *sweep, "--data", data, "--task", "all")
    shutil.copytree(glue / "RTE", data / "RTE")
    manifest = read_json(data / "RTE" / "preparation.json")
    manifest["tokenizer_fingerprint"] = "0"
    (data / "RTE" / "preparation.json").write_text(json.dumps(manifest))
    sentence = refused(finetune_glue, *sweep, "--data", data)
    assert "was not trained with the tokeniser of" in sentence and "--tokenizer-from" in sentence
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
    assert "is incomplete, without another checkpoint" in sentence(path)
    torch.save({"model": Evil(trace)}, path)
    assert "nothing in it was run" in sentence(path)
    assert not trace.exists()
    state = torch.load(sweep[0], weights_only=True)
    torch.save({**state, "model": {"decoder.embed_tokens.weight": torch.zeros(3, 4)}}, path)
    assert "holds no RoBERTa encoder" in sentence(path)
    model = {**state["cfg"]["model"], "_name": "roberta_transnormer_t9", "arch": "roberta_transnormer_t9"}
    torch.save({**state, "cfg": {**state["cfg"], "model": model}}, path)
    assert "not an encoder of this project; did you mean roberta_transnormer_t" in sentence(path)
    assert not (tmp_path / "out").exists()


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
    found = read_json(out / "RTE" / f"{RUN}.json")["found"]
    assert found["cut"] == count
    accuracy = found["dev"]["valid"]["accuracy"]
    right = accuracy / 100 * (ROWS["valid"] + 1)  # the long one counts
    assert right == pytest.approx(round(right), abs=1e-4)


def test_a_best_figure_that_nothing_has_is_named():
    axes = {"lr": None}
    best = read_best({"axis": "lr", "highest": "scor"}, axes, "x.yaml")
    record = {"study": "mine", "cell": {"lr": "1"}, "found": {"score": 1.0}, "training": {}}
    with pytest.raises(UserError, match="scor, which mine has not measured; did you mean score"):
        best_records(best, [record])
    assert best_records(best, []) == []
