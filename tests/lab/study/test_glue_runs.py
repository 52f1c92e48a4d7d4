"""Fine-tuning on GLUE that is interrupted, repeated, changed, or has a run that fails."""

import json
import re
import shutil
from dataclasses import replace

import pytest
import torch

from lab.commands import finetune_glue
from lab.errors import UserError
from lab.files import ROOT, read_json, run_lock, shown_path, write_json
from lab.run import glue as glue_flags
from lab.run.log import log_entries
from lab.study import cells as study_cells
from lab.study import cli
from lab.study.cli import check_starts, check_whose
from lab.study.declaration import read_study
from lab.study.schema import Choice, Tune
from tests.helpers.cases import firstly
from tests.helpers.encoders import ROWS
from tests.lab.study.conftest import cells, glue_cell, made_up, write_record

UPDATES = 24  # eight epochs: the first one's checkpoint is there when the second is killed


def figures(out):
    """The records of a sweep without entries that differ between equal runs."""
    records = {path.relative_to(out): read_json(path) for path in out.glob("*/*/seed*.json")}
    return {path: {key: one[key] for key in ("cell", "data", "found")} for path, one in records.items()}


@pytest.fixture
def no_training(monkeypatch):
    """Any cell that is started fails."""

    def refuse(*unused, **unused_too):
        raise AssertionError("a cell is run")

    monkeypatch.setattr("lab.study.schedule.start", refuse)


@pytest.fixture
def words(pretrained, glue, tmp_path):
    """The arguments of a sweep into tmp_path / "out" that is the finished one's, all of it."""
    return [
        pretrained / "checkpoint_last.pt",
        "--data",
        glue,
        "--out",
        tmp_path / "out",
        "--max-update",
        3,
        "--learning-rates",
        "0.01",
        "--seeds",
        "1",
    ]


@pytest.mark.slow
def test_killed_and_carried_on(call, kill, pretrained, glue, tmp_path, capsys):
    """`kill -9` in the second epoch of the second run: the first is not run again, the second resumes."""

    def sweep(out):
        words = [pretrained / "checkpoint_last.pt", "--data", glue, "--out", out, "--task", "MNLI"]
        return [*words, "--learning-rates", "0.001", "--seeds", "2", "--max-update", UPDATES]

    whole, killed = tmp_path / "whole", tmp_path / "killed"
    call(finetune_glue, *sweep(whole))
    first, second = (killed / "MNLI" / "0.001" / f"seed{seed}" for seed in (1, 2))
    shutil.copytree(whole / "MNLI" / "0.001" / "seed1", first)
    shutil.copy(whole / "MNLI" / "0.001" / "seed1.json", first.with_suffix(".json"))
    shutil.copytree(whole / "MNLI" / "0.001" / "seed2", second)
    # The folder as the command begins it.
    for path in second.iterdir():
        if path.is_file() and not path.name.startswith("."):
            path.unlink()
    written = first.with_suffix(".json").stat().st_mtime_ns
    kill("finetune", sweep(killed), second / "train.log", "begin training epoch 2")
    assert not (killed / "README.md").exists() and not second.with_suffix(".json").exists()
    capsys.readouterr()
    call(finetune_glue, *sweep(killed))
    assert "2 runs, 1 done before" in capsys.readouterr().out
    assert first.with_suffix(".json").stat().st_mtime_ns == written
    log = (second / "train.log").read_text()
    resumed_at = int(re.search(r"@ (\d+) updates", log)[1])
    assert resumed_at in range(3, UPDATES, 3) and not re.search(r"begin training epoch 1\b", log)
    assert figures(killed) == figures(whole)
    kept = [path.parent.name for path in killed.glob("MNLI/*/*/*.pt")]
    assert kept == [path.parent.name for path in whole.glob("MNLI/*/*/*.pt")] and len(kept) == 1


def test_what_is_finished_is_not_run_again(call, no_training, finetuned, words, tmp_path, capsys):
    out = tmp_path / "out"
    shutil.copytree(finetuned, out)
    (out / "README.md").unlink()
    call(finetune_glue, *words)
    assert "9 runs, 9 done before" in capsys.readouterr().out
    assert (out / "README.md").read_text() == (finetuned / "README.md").read_text()
    call(finetune_glue, *words, "--task", "RTE")  # one page holds the tasks of several commands
    assert (out / "README.md").read_text() == (finetuned / "README.md").read_text()


def test_two_commands_share_a_folder_but_not_a_task(
    call, refused, no_training, finetuned, words, tmp_path, capsys, monkeypatch
):
    """As the jobs of an array do; the second of two equal ones is refused."""
    monkeypatch.setattr(cli, "SECONDS_TO_END", 0)
    out = tmp_path / "out"
    shutil.copytree(finetuned, out)
    with run_lock(out / "RTE"):
        assert "in use by" in refused(finetune_glue, *words, "--task", "RTE")
        call(finetune_glue, *words, "--task", "WNLI")
    assert "1 done before" in capsys.readouterr().out


def rte(start, data, out, updates=3, rate="0.01", seed=1):
    """The cell of one run of so many updates."""
    return replace(glue_cell(start, data, rate, out=out, flags=("--max-update", str(updates))), seed=seed)


def test_what_decides_a_result(finetuned, pretrained, glue, tmp_path):
    """A record of another length, encoder or task's data is not taken for finished."""
    path = pretrained / "checkpoint_last.pt"
    cell = rte(path, glue, finetuned)
    assert cell.record()["found"]["learning_rate"] == 0.01
    marks = {cell.fingerprint()}
    marks |= {rte(path, glue, finetuned, **one).fingerprint() for one in ({"rate": "0.02"}, {"seed": 2})}
    assert len(marks) == 3
    state = torch.load(path, weights_only=True)
    state["model"]["encoder.lm_head.bias"] += 1
    torch.save(state, tmp_path / "other.pt")
    others = [rte(path, glue, finetuned, updates=4), rte(tmp_path / "other.pt", glue, finetuned)]
    for other in others:
        with pytest.raises(UserError, match="other settings"):
            other.record()
    shutil.copytree(glue / "RTE", tmp_path / "data" / "RTE")
    changed = read_json(glue / "RTE" / "preparation.json")
    changed["splits"]["train"]["sha256"] = "another"
    (tmp_path / "data" / "RTE" / "preparation.json").write_text(json.dumps(changed))
    with pytest.raises(UserError, match="other data"):
        rte(path, tmp_path / "data", finetuned).record()


def test_length_follows_from_the_data(pretrained, glue, tmp_path):
    """Whole epochs, or the updates asked for if they are fewer; warm-up is a share of them."""
    cell = rte(pretrained / "checkpoint_last.pt", glue, tmp_path, updates=10**6)
    whole = -(-ROWS["train"] // 32) * 3
    assert cell.updates() == whole
    words = " ".join(cell.data_flags())
    assert f"--total-num-update {whole} --warmup-updates {round(0.06 * whole)}" in words
    assert rte(pretrained / "checkpoint_last.pt", glue, tmp_path, updates=2).updates() == 2


def test_what_a_study_sets_is_not_replaced_by_what_follows_from_the_data(glue):
    """Its settings, its choices and the value on trial; a run of tuning still gets the data's own length."""
    study = replace(read_study("glue"), settings={"best_checkpoint_metric": "loss"}, start="")

    def words(**changed):
        [cell] = cells(replace(study, **changed), {"task": ["RTE"], "lr": ["0.01"]}, data=glue)
        return cell.data_flags()

    assert "--best-checkpoint-metric" not in words() and "--warmup-updates" in words()
    choices = {"RTE": Choice("RTE", {"warmup_updates": 5}, "RTE", "RTE")}
    axes = {**study.axes, "task": replace(study.axes["task"], choices=choices)}
    assert "--warmup-updates" not in words(axes=axes) and "--num-classes" in words(axes=axes)
    [cell] = cells(study, {"task": ["RTE"], "lr": ["0.01"]}, data=glue)
    for axis, replaced in (("warmup_updates", False), ("dropout", True)):
        tune = Tune(axis, ("1", "2"), 3, "valid_loss", bracket=False, only={})
        plan = replace(cell.plan, study=replace(study, tune=tune))
        tried = replace(cell, plan=plan, tuning="2")
        assert ("--warmup-updates" in tried.data_flags()) == replaced
        assert "--total-num-update" in tried.data_flags()


@pytest.mark.parametrize("name", firstly(1, ["STS-B", "SST-2"]))
def test_whole_epochs(call, pretrained, glue, tmp_path, name):
    """Without --max-update every epoch of the YAML is run to its end, over all examples."""
    words = [pretrained / "checkpoint_last.pt", "--data", glue, "--out", tmp_path, "--task", name]
    call(finetune_glue, *words, "--learning-rates", "0.001", "--seeds", "1")
    batches, epochs = -(-ROWS["train"] // 32), 3
    folder = tmp_path / name / "0.001" / "seed1"
    assert read_json(folder.with_suffix(".json"))["training"]["updates"] == batches * epochs
    with (folder / "train.log").open() as log:
        records = [record for kind, record in log_entries(log) if kind == "train"]
    assert [r["train_num_updates"] for r in records] == [batches, 2 * batches, 3 * batches]


def test_a_folder_of_other_settings_is_refused(refused, no_training, finetuned, words, tmp_path):
    """A run of other settings is neither taken, resumed nor removed."""
    shutil.copytree(finetuned / "WNLI", tmp_path / "out" / "WNLI")
    words[words.index("--max-update") + 1] = 1
    sentence = refused(finetune_glue, *words, "--task", "WNLI")
    assert "holds cells with different flags" in sentence and "--out" in sentence
    assert (tmp_path / "out" / "WNLI" / "0.01" / "seed1.json").exists()


def test_a_run_that_fails_is_named_and_the_others_run(refused, words, tmp_path):
    """Its folder holds somebody else's files."""
    foreign = tmp_path / "out" / "RTE" / "0.01" / "seed1" / "notes.txt"
    foreign.parent.mkdir(parents=True)
    foreign.write_text("mine")
    words[words.index("--max-update") + 1] = 1
    sentence = refused(finetune_glue, *words, "--task", "RTE,WNLI")
    assert "1 run failed; the first: RTE, 0.01, seed 1: " in sentence and "has not written" in sentence
    assert foreign.read_text() == "mine" and not foreign.parent.with_suffix(".json").exists()
    page = (tmp_path / "out" / "README.md").read_text()
    assert "WNLI, accuracy" in page and "RTE, accuracy" not in page


@pytest.mark.parametrize(("examples", "size"), [(9, 32), (33, 31), (993, 30), (1_500, 32), (2, 32)])
def test_correlation_has_no_batch_of_one(examples, size):
    assert glue_flags.valid_batch(examples, 32) == size and examples % size != 1


def test_correlation_of_one_example_is_refused():
    with pytest.raises(UserError, match="a single dev example"):
        glue_flags.valid_batch(1, 32)


def test_a_start_that_another_study_makes(tmp_path):
    """Its settings stand for it in the fingerprint; without its checkpoint nothing can be run."""
    study = read_study("roberta_glue")
    asked = {"method": ["lln", "linear"], "task": ["MRPC"], "lr": ["0.001"]}
    lln, linear = cells(study, asked, data=tmp_path)
    run = ROOT / "runs" / "studies" / "roberta_short" / "lln" / "seed1"
    assert lln.start == run / "checkpoint_best.pt"
    assert lln.fingerprint() != linear.fingerprint() and lln.own_flags() == linear.own_flags()
    roberta = read_study("roberta_short")
    (source,) = cells(roberta, {"method": ["lln"]})
    changed = replace(source, plan=replace(source.plan, flags=("--dropout", "0.1")))
    assert source.fingerprint() != changed.fingerprint()
    assert lln.start_mark() == {
        "start": {
            "path": shown_path(lln.start),
            "fingerprint": lln.started_from.fingerprint(),
            "seed": lln.started_from.seed,
        }
    }
    second = replace(lln, seed=2)
    assert second.start == run.with_name("seed2") / "checkpoint_best.pt"
    assert second.fingerprint() != replace(second, start_seed=1).fingerprint()
    assert replace(second, start_seed=1).start == lln.start
    nowhere = replace(lln, plan=replace(lln.plan, start=tmp_path / "none.pt"))
    with pytest.raises(UserError, match="--start"):
        check_starts([nowhere])


def test_a_start_has_finished(tmp_path, monkeypatch):
    """Its checkpoints are there long before."""
    monkeypatch.setattr(study_cells, "RUNS", tmp_path)
    monkeypatch.setattr(study_cells, "_run_of", study_cells._run_of.__wrapped__)
    monkeypatch.setattr(study_cells, "same_data", lambda *_: True)  # whether the corpus is here or not
    [cell] = cells(read_study("roberta_glue"), {"method": ["lln"], "task": ["MRPC"], "lr": ["0.001"]})
    with pytest.raises(UserError, match="no checkpoint .*; run .* --method lln --seeds 1 first"):
        check_starts([cell])
    with pytest.raises(UserError, match="no checkpoint .*; run .* --method lln --seeds 3 first"):
        check_starts([replace(cell, seed=3)])
    cell.start.parent.mkdir(parents=True)
    cell.start.touch()
    with pytest.raises(UserError, match="has not finished; run .* --method lln --seeds 1 first"):
        check_starts([cell])
    run = cell.started_from
    write_record(run, made_up("lln", 1))
    check_starts([cell])
    last = cell.start.with_name("checkpoint_last.pt")
    cell.start.rename(last)
    assert cell.start == last
    check_starts([cell])
    last.unlink()
    said = "checkpoint_best.pt, though .*seed1.json says that it was trained; move that away and run .* first"
    with pytest.raises(UserError, match=said):
        check_starts([cell])
    last.touch()
    other = {**read_json(run.record_path), "fingerprint": "another"}
    write_json(run.record_path, other)
    with pytest.raises(UserError, match="made with other settings"):
        check_starts([cell])


def test_one_checkpoint_is_the_start_of_one_method():
    study = read_study("roberta_glue")
    with pytest.raises(UserError, match="--start names one checkpoint; say whose it is with --method"):
        check_whose(study, cells(study))
    check_whose(study, cells(study, {"method": ["lln"]}))


def test_a_stored_record_that_began_with_another_encoder_is_named(tmp_path):
    study = read_study("roberta_glue")
    asked = {"method": ["lln"], "task": ["MRPC"], "lr": ["0.001"]}
    [cell] = cells(study, asked, out=tmp_path, data=tmp_path)
    second = replace(cell, seed=2)
    for start_seed, said in ((1, "started from seed 1 of roberta_short"), (None, "made with other settings")):
        old = replace(second, start_seed=start_seed)
        record = {**made_up("lln", 2), "cell": second.key, **old.start_mark()}
        record["fingerprint"] = old.fingerprint() if start_seed else "another"
        with pytest.raises(UserError, match=f"records.jsonl: .*/seed2.json .*{said}.*remove its line"):
            second.check_stored(record)
