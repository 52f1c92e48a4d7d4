"""A GLUE sweep that is interrupted, repeated, changed, or has a run that fails."""

import json
import shutil

import pytest
import torch

from pipeline.errors import UserError
from pipeline.files import RUN_MARK
from pipeline.glue_tasks import TASKS
from pipeline.studies import glue_cell as glue_run
from pipeline.studies import glue_sweep as finetune_glue
from pipeline.studies.glue_cell import Cell, TaskData
from pipeline.training.process.logged_run import run_fairseq
from pipeline.training.process.progress import read_records
from tests.helpers.encoders import ROWS

UPDATES = 6  # two epochs: the first one's checkpoint is there when the second is killed


def read(path):
    return json.loads(path.read_text())


def figures(out):
    """A sweep's record without what differs between equal runs."""
    record = read(out / "glue.json")
    for task in record["tasks"].values():
        task["cells"] = [{key: cell[key] for key in ("seed", "updates", "dev")} for cell in task["cells"]]
    return record


@pytest.fixture
def no_training(monkeypatch):
    """Any run of fairseq fails."""

    def refuse(command, arguments, log, **unused):
        raise AssertionError(f"fairseq-{command} is run for {log}")

    monkeypatch.setattr(glue_run, "run_fairseq", refuse)


@pytest.mark.slow
def test_killed_and_carried_on(call, kill, pretrained, glue, tmp_path, capsys):
    """`kill -9` in the second epoch of the second run: the first is not run again, the second resumes."""

    def sweep(out):
        words = [pretrained / "checkpoint_last.pt", "--data", glue, "--out", out, "--task", "MNLI"]
        return [*words, "--learning-rates", "0.001", "--seeds", "1,2", "--max-update", UPDATES]

    whole, killed = tmp_path / "whole", tmp_path / "killed"
    call(finetune_glue, *sweep(whole))
    first, second = (killed / "MNLI" / f"lr0.001-seed{seed}" for seed in (1, 2))
    shutil.copytree(whole / "MNLI" / first.name, first)
    second.mkdir()
    shutil.copy(whole / "MNLI" / second.name / RUN_MARK, second)  # before the pipe that `kill` puts there
    written = (first / "result.json").stat().st_mtime_ns
    kill(finetune_glue, sweep(killed), second / "train.log", "begin training epoch 2")
    assert not (killed / "glue.json").exists() and not (second / "result.json").exists()
    capsys.readouterr()
    call(finetune_glue, *sweep(killed))
    assert "2 runs, 1 done before" in capsys.readouterr().out
    assert (first / "result.json").stat().st_mtime_ns == written
    log = (second / "train.log").read_text()
    assert f"@ {UPDATES // 2} updates" in log and "begin training epoch 1" not in log
    assert figures(killed) == figures(whole)
    kept = [path.parent.name for path in killed.glob("MNLI/*/*.pt")]
    assert kept == [path.parent.name for path in whole.glob("MNLI/*/*.pt")] and len(kept) == 1


def test_what_is_finished_is_not_run_again(call, no_training, finetuned, pretrained, glue, tmp_path, capsys):
    out = tmp_path / "out"
    shutil.copytree(finetuned, out)
    (out / "glue.md").unlink()
    words = [pretrained / "checkpoint_last.pt", "--data", glue, "--out", out, "--max-update", 3]
    call(finetune_glue, *words, "--learning-rates", "0.01", "--seeds", "1")
    assert "9 runs, 9 done before" in capsys.readouterr().out
    for name in ("glue.md", "glue.json"):
        assert (out / name).read_text() == (finetuned / name).read_text()


def test_one_table_holds_the_tasks_of_several_sweeps(
    call, no_training, finetuned, pretrained, glue, tmp_path
):
    out = tmp_path / "out"
    shutil.copytree(finetuned, out)
    words = [pretrained / "checkpoint_last.pt", "--data", glue, "--out", out, "--max-update", 3]
    words += ["--learning-rates", "0.01", "--seeds", "1", "--task", "RTE"]
    call(finetune_glue, *words)
    for name in ("glue.md", "glue.json"):
        assert (out / name).read_text() == (finetuned / name).read_text()
    record = read(out / "glue.json")
    (out / "glue.json").write_text(json.dumps({**record, "encoder": "another"}))
    call(finetune_glue, *words)
    assert list(read(out / "glue.json")["tasks"]) == ["RTE"]


def test_what_decides_a_result(finetuned, pretrained, glue, tmp_path):
    """A cell with another rate, seed, length, encoder or task's data is not taken for finished."""

    def cell(rate=0.01, seed=1, updates=3, encoder=pretrained / "checkpoint_last.pt", manifest=None):
        data = TaskData(TASKS["RTE"], glue / "RTE", manifest or read(glue / "RTE" / "preparation.json"))
        source = glue_run.read_encoder(encoder)
        return Cell(source, data, rate, seed, 0.06, updates, finetuned / "RTE" / "lr0.01-seed1")

    assert cell().result()["learning_rate"] == 0.01
    changed = read(glue / "RTE" / "preparation.json")
    changed["splits"]["train"]["sha256"] = "another"
    state = torch.load(pretrained / "checkpoint_last.pt", weights_only=True)
    state["model"]["encoder.lm_head.bias"] += 1
    torch.save(state, tmp_path / "other.pt")
    others = [cell(rate=0.02), cell(seed=2), cell(updates=4), cell(manifest=changed)]
    others.append(cell(encoder=tmp_path / "other.pt"))
    for other in others:
        with pytest.raises(UserError, match="other settings"):
            other.result()


@pytest.mark.parametrize("name", ["SST-2", "STS-B"])
def test_whole_epochs(call, pretrained, glue, tmp_path, name):
    """Without --max-update every epoch of the YAML is run to its end, over all examples."""
    words = [pretrained / "checkpoint_last.pt", "--data", glue, "--out", tmp_path, "--task", name]
    call(finetune_glue, *words, "--learning-rates", "0.001", "--seeds", "1")
    batches, epochs = -(-ROWS["train"] // 32), 3
    folder = tmp_path / name / "lr0.001-seed1"
    assert read(folder / "result.json")["updates"] == batches * epochs
    with (folder / "train.log").open() as log:
        records = [record for kind, record in read_records(log) if kind == "train"]
    assert [r["train_num_updates"] for r in records] == [batches, 2 * batches, 3 * batches]


def test_a_folder_of_other_settings_is_refused(refused, no_training, finetuned, pretrained, glue, tmp_path):
    """What a run of other settings has left is neither taken, resumed nor removed, finished or not."""
    shutil.copytree(finetuned / "WNLI", tmp_path / "WNLI")
    words = [pretrained / "checkpoint_last.pt", "--data", glue, "--out", tmp_path, "--task", "WNLI"]
    words += ["--learning-rates", "0.01", "--seeds", "1", "--max-update", 1]
    result = tmp_path / "WNLI" / "lr0.01-seed1" / "result.json"
    assert "result.json was made with other settings" in refused(finetune_glue, *words)
    assert result.exists()
    result.unlink()
    assert "lr0.01-seed1 was made with other settings" in refused(finetune_glue, *words)
    assert (result.parent / "checkpoint_best.pt").exists()


def test_a_run_that_fails_is_named_and_the_others_run(
    refused, monkeypatch, pretrained, glue, tmp_path, capsys
):
    def run(command, arguments, log, **options):
        if "/RTE/" in str(log):
            raise UserError("the disk is full")
        run_fairseq(command, arguments, log, **options)

    monkeypatch.setattr(glue_run, "run_fairseq", run)
    words = [pretrained / "checkpoint_last.pt", "--data", glue, "--out", tmp_path, "--task", "RTE,WNLI"]
    words += ["--learning-rates", "0.01", "--seeds", "1", "--max-update", 1]
    sentence = refused(finetune_glue, *words)
    assert "1 run failed; the first: RTE, learning rate 0.01, seed 1: the disk is full" in sentence
    tasks = read(tmp_path / "glue.json")["tasks"]
    assert tasks["RTE"]["best"] is None and tasks["RTE"]["cells"] == []
    assert tasks["WNLI"]["best"]["learning_rate"] == 0.01
    header = (tmp_path / "glue.md").read_text().splitlines()[0]
    assert "WNLI" in header and "RTE" not in header


def test_a_sweep_without_results_writes_no_table(refused, monkeypatch, pretrained, glue, tmp_path):
    def fail(*unused, **unused_too):
        raise UserError("the disk is full")

    monkeypatch.setattr(glue_run, "run_fairseq", fail)
    words = [pretrained / "checkpoint_last.pt", "--data", glue, "--out", tmp_path, "--task", "RTE,WNLI"]
    sentence = refused(finetune_glue, *words, "--learning-rates", "0.01", "--seeds", "1")
    assert "all 2 runs failed; the first: RTE, learning rate 0.01, seed 1: the disk is full" in sentence
    assert not [*tmp_path.glob("glue.*")]


@pytest.mark.parametrize(("examples", "size"), [(9, 32), (33, 31), (993, 30), (1_500, 32), (2, 32)])
def test_correlation_has_no_batch_of_one(pretrained, glue, tmp_path, examples, size):
    manifest = read(glue / "STS-B" / "preparation.json")
    manifest["splits"]["valid"]["examples"] = examples
    encoder = glue_run.read_encoder(pretrained / "checkpoint_last.pt")
    cell = Cell(encoder, TaskData(TASKS["STS-B"], glue, manifest), 0.1, 1, 0.06, 1, tmp_path)
    assert cell.valid_batch() == size and examples % size != 1
    manifest["splits"]["valid"]["examples"] = 1
    with pytest.raises(UserError, match="has one dev example"):
        cell.valid_batch()
