"""A study runs its cells once, resumes, refuses invalid settings, and keeps others out of its folder."""

import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from textwrap import dedent
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from lab.errors import Diverged, UserError
from lab.files import ROOT, RUN_MARK, write_json
from lab.publish.tables import sessions_sentence
from lab.run import train as trainer
from lab.run.folder import LOG
from lab.study import cli as study
from lab.study import schedule, worker
from lab.study.cli import time_left
from lab.study.declaration import read_study
from lab.study.records import read_records
from lab.study.schedule import SETTINGS_ARE_WRONG, request_of
from lab.study.tuning import tuning_cells
from tests.helpers import commands, forked
from tests.helpers.logs import inner, wait_for
from tests.helpers.lra import write_lra
from tests.helpers.once import filled_once
from tests.lab.study.conftest import DOCUMENTED, SHORT, STUDY, cells, record_of, write_record

BEGUN_BEFORE = "721cb310f273"
"""The fingerprint of the tiny study's cell elu, as revision 177900ac computed it."""


def record(out, method="elu", seed=1):
    return json.loads((out / "tiny" / method / f"seed{seed}.json").read_text())


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """The folder of a study with two cells."""

    def fill(folder):
        path = folder / "tiny.yaml"
        path.write_text(dedent(STUDY))
        words = [path, "--method", "softmax,elu", "--jobs", 2, "--out", folder / "out", "--", *SHORT]
        commands.call(study, *words)

    return filled_once(tmp_path_factory, "finished study", fill) / "out"


@pytest.fixture
def out(finished, tmp_path):
    """A copy of the finished study's folder."""
    return shutil.copytree(finished, tmp_path / "out")


@pytest.mark.slow
def test_cells_run_once_and_the_page_comes_from_their_records(call, refused, study_file, out, capsys):
    words = [study_file, "--method", "softmax,elu", "--jobs", 2, "--out", out, "--", *SHORT]
    found = record(out)
    assert found["cell"] == {"preset": "tiny", "method": "elu", "seed": 1}
    assert found["training"]["updates"] == 4 and len(found["training"]["curves"]["train"]) == 4
    assert found["found"]["examples"] == 40 and not found["found"]["converged"]
    assert [path.name for path in (out / "tiny/elu/seed1").glob("checkpoint*")] == ["checkpoint_last.pt"]
    page = (out / "README.md").read_text()
    assert "| softmax\\* |" in page and "| 1+elu\\* |" in page and (out / "tiny-curves.png").is_file()
    capsys.readouterr()
    before = (out / "tiny/elu/seed1.json").read_bytes()
    call(study, *words)
    assert "2 runs, 2 done before" in capsys.readouterr().out
    assert (out / "tiny/elu/seed1.json").read_bytes() == before
    call(study, *words[: -len(SHORT) - 1], "--status", "--", *SHORT)
    assert capsys.readouterr().out.count(": done: loss, nats") == 2
    assert "--out" in refused(study, *words, "--lr", "0.1")


def test_a_run_of_tuning_may_diverge(study_with, tmp_path, monkeypatch):
    def diverge(plan):
        raise Diverged("the loss is nan")

    monkeypatch.setattr(worker, "train", diverge)
    study = study_with(tune={"axis": "lr", "values": [1, 2], "updates": 3})
    [cell] = cells(study, {"method": ["elu"]}, out=tmp_path / "out")
    [tried, _] = tuning_cells(cell)
    assert worker.trained(tried, None) == {"diverged": "the loss is nan"}
    with pytest.raises(Diverged):
        worker.trained(cell, None)


@pytest.mark.parametrize("which", ["best", "last"])
def test_a_run_is_measured_by_the_checkpoint_that_its_study_names(which, study_with, tmp_path, monkeypatch):
    """By its update, which is another one in the other checkpoint."""

    def measured(run):
        return {"update": torch.load(run.checkpoint)["optimizer_history"][0]["num_updates"]}

    monkeypatch.setattr(worker, "measuring", lambda name: measured)
    [cell] = cells(study_with(checkpoint=which), {"method": ["elu"]}, out=tmp_path / "out")
    cell.folder.mkdir(parents=True)
    for name, update in (("best", 3), ("last", 4)):
        state = {"model": {"x": torch.ones(1)}, "optimizer_history": [{"num_updates": update}]}
        torch.save(state, cell.folder / f"checkpoint_{name}.pt")
    found = worker.figures_of_run(cell, SimpleNamespace(arguments=(), data=None), torch.device("cpu"))
    assert found == {"update": {"best": 3, "last": 4}[which]}


def test_a_run_begun_on_other_data_is_not_taken_up(tmp_path, monkeypatch):
    data = write_lra(tmp_path / "image", "image")
    asked = {"setting": ["papers"], "task": ["image"], "method": ["lln"]}
    cell, *_ = cells(read_study("lra"), asked, out=tmp_path / "out", data=data)
    cell.folder.mkdir(parents=True)
    labels = data / "train.label.npy"

    def take_up():
        np.save(labels, np.roll(np.load(labels), 1))
        trainer.take_up(cell.run, data, None)

    take_up()
    take_up()  # nothing was saved: it starts again
    begun = SimpleNamespace(groups={})
    monkeypatch.setattr(trainer, "find_resume_point", lambda *unused: begun)
    monkeypatch.setattr("lab.run.train.check_same_run", lambda *unused: None)
    assert trainer.take_up(cell.run, data, None) is begun
    with pytest.raises(UserError, match="run on other training data .* or choose another --out$"):
        take_up()


def test_a_cell_that_revision_177900ac_has_begun_is_resumed(tmp_path, study_file, monkeypatch):
    """Its folder has the mark of that revision; a study with other settings refuses it."""
    [cell] = cells(read_study(study_file), {"method": ["elu"]}, out=tmp_path / "out")
    cell.folder.mkdir(parents=True)
    write_json(cell.folder / RUN_MARK, {"command": "study.sh", "fingerprint": BEGUN_BEFORE})
    (cell.folder / "train.log").write_text("of the first updates\n")
    state = {"model": {"x": torch.ones(1)}, "optimizer_history": [{"num_updates": 3}], "cfg": {"model": {}}}
    torch.save(state, cell.folder / "checkpoint_1_3.pt")
    monkeypatch.setattr("lab.run.train.check_same_run", lambda *unused: None)
    with cell.run.lock():
        cell.run.begin()
        assert trainer.take_up(cell.run, None, None).updates == 3
    assert cell.run.log.read_text() == "of the first updates\n"
    [other] = cells(read_study(study_file), {"method": ["elu"]}, out=tmp_path / "out", flags=("--lr", "1"))
    with (
        pytest.raises(UserError, match="was made with other settings .* choose another --out"),
        other.run.lock(),
    ):
        other.run.begin()
    (cell.folder / "checkpoint_1_3.pt").write_text("damaged")
    with pytest.raises(UserError, match="no checkpoint in .* is whole .*move them away"):
        trainer.take_up(cell.run, None, None)


def test_a_record_names_the_commits_that_trained_and_measured(study_file, tmp_path, monkeypatch):
    [cell] = cells(read_study(study_file), {"method": ["elu"]}, out=tmp_path / "out")
    now = {"commit": "one"}
    monkeypatch.setattr("lab.run.folder.commit", lambda: now["commit"])
    monkeypatch.setattr(worker, "environment", lambda device: {**now})
    cell.run.begin()
    assert worker.environment_of(cell, torch.device("cpu")) == {"commit": "one"}
    (cell.folder / "checkpoint_last.pt").touch()
    now["commit"] = "two"
    cell.run.begin()
    found = worker.environment_of(cell, torch.device("cpu"))
    assert found == {"commit": "one", "measured_at": "two"}
    record = record_of(
        cell.key, {}, environment={**found, "date": "1", "hardware": {"cpu": "x"}, "threads": 1}
    )
    assert "(commit one, two)" in sessions_sentence([record])
    write_json(cell.folder / RUN_MARK, {"command": "study.sh", "fingerprint": cell.fingerprint()})
    assert worker.environment_of(cell, torch.device("cpu")) == {"commit": "two"}  # begun before marks had it


def test_a_record_is_on_the_disk_before_checkpoints_go(study_file, tmp_path, monkeypatch):
    [cell] = cells(read_study(study_file), {"method": ["elu"]}, out=tmp_path / "out")
    for name in ("plan_of", "trained", "run_figures", "figures_of_run", "record_of"):
        monkeypatch.setattr(worker, name, lambda *given: {})
    calls = []
    monkeypatch.setattr(worker, "flush_to_disk", lambda path: calls.append(path.read_text()))
    monkeypatch.setattr(worker, "prune", lambda cell: calls.append("prune"))
    worker.work(cell)
    assert calls == ["{}\n", "prune"]


def test_a_begun_cell_loses_what_a_run_has_written_and_nothing_else(study_file, tmp_path):
    [cell] = cells(read_study(study_file), {"method": ["elu"]}, out=tmp_path / "out")
    ours = (
        *("train.log", "data.json", "dict.txt", ".01234567.checkpoint_1_4.pt.tmp"),
        "tensorboard/train/events.out.tfevents.1",
    )
    theirs = ("NOTES.md", "analysis/result.csv", "analysis/train.log", "tensorboard/notes.txt")
    for name in (*ours, *theirs):
        (cell.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (cell.folder / name).write_text(name)
    (cell.folder / "more").symlink_to(tmp_path)
    cell.run.begin()
    left = {str(path.relative_to(cell.folder)) for path in cell.folder.rglob("*") if path.is_file()}
    assert left == {*theirs, RUN_MARK} and (cell.folder / "more").is_symlink()


def test_checkpoints_under_names_of_the_users_are_kept(study_file, tmp_path):
    [cell] = cells(read_study(study_file), {"method": ["elu"]}, out=tmp_path / "out")
    cell.folder.mkdir(parents=True)
    ours, theirs = (
        ("_best", "12", "_1_4", ".best_loss_2.3456"),
        ("_last", "_mine", "_best_copy", "_1_4 (copy)"),
    )
    for name in (*ours, *theirs):
        (cell.folder / f"checkpoint{name}.pt").touch()
    worker.prune(cell)
    assert {path.name for path in cell.folder.iterdir()} == {f"checkpoint{name}.pt" for name in theirs}


def test_a_pipe_in_place_of_a_record_is_refused(study_file, tmp_path):
    [cell] = cells(read_study(study_file), {"method": ["elu"]}, out=tmp_path / "out")
    cell.folder.parent.mkdir(parents=True)
    os.mkfifo(cell.record_path)
    with pytest.raises(UserError, match="seed1.json is not a file; move it away"):
        cell.record()
    with pytest.raises(UserError, match="seed1.json cannot be read as JSON; move it away"):
        read_records(tmp_path / "out", read_study(study_file))


def test_a_record_measured_otherwise_is_refused(out, finished):
    study = read_study(finished.parent / "tiny.yaml")
    [cell] = cells(study, {"method": ["elu"]}, out=out, flags=SHORT)
    assert cell.record()["evaluate"] == "copy"
    [other] = cells(replace(study, checkpoint="best"), {"method": ["elu"]}, out=out, flags=SHORT)
    with pytest.raises(UserError, match="measured with another `checkpoint`"):
        other.record()


@pytest.mark.slow
def test_the_page_of_a_run_below_the_log_interval_has_dashes(call, study_with, tmp_path, capsys):
    columns = [["loss, nats", "loss_nats", ".4f"], ["converged at update", "converged_at", ",.0f"]]
    path, out = study_with(table={"rows": "method", "columns": columns}).path, tmp_path / "out"
    words = [path, "--method", "elu", "--out", out, "--", *SHORT, "--log-interval", 100, "--max-update", 2]
    call(study, *words)
    found = record(out)
    assert found["training"]["updates"] == 2
    row = rf"^\| 1\+elu\S* \| {found['found']['loss_nats']:.4f} \| – \| 1 \|$"
    assert re.search(row, (out / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    capsys.readouterr()
    call(study, *words)
    assert "1 run, 1 done before" in capsys.readouterr().out


@pytest.mark.longest
@pytest.mark.slow
def test_a_killed_study_resumes_and_ends_as_if_nothing_had_happened(call, kill, study_file, tmp_path):
    flags = ["--", *SHORT, "--max-update", 12, "--save-interval-updates", 2, "--keep-interval-updates", 1]
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    call(study, study_file, "--method", "elu", "--out", whole, *flags)
    words = [study_file, "--method", "elu", "--out", cut, *flags]
    kill("study", words, cut / "tiny/elu/seed1/train.log", '"num_updates": "8"')
    assert not (cut / "tiny/elu/seed1.json").exists()
    call(study, *words)
    states = [
        torch.load(folder / "tiny/elu/seed1/checkpoint_last.pt", weights_only=True)["model"]
        for folder in (whole, cut)
    ]
    for name, value in states[0].items():
        torch.testing.assert_close(states[1][name], value, rtol=0, atol=0, msg=name)
    assert record(whole)["found"] == record(cut)["found"]
    assert record(cut)["training"]["updates"] == 12


@pytest.mark.slow
def test_a_run_that_was_killed_before_its_record_is_measured_and_not_trained_on(call, study_file, out):
    before, path = record(out), out / "tiny/elu/seed1.json"
    weights = (out / "tiny/elu/seed1/checkpoint_last.pt").read_bytes()
    path.unlink()
    call(study, study_file, "--method", "elu", "--out", out, "--", *SHORT)
    assert (out / "tiny/elu/seed1/checkpoint_last.pt").read_bytes() == weights
    assert record(out)["found"] == before["found"] and record(out)["training"] == before["training"]


@pytest.mark.slow
def test_weights_of_a_run_that_was_killed_after_its_record_go(call, study_file, out):
    folder = out / "tiny/elu/seed1"
    for name in ("checkpoint_best.pt", "checkpoint_1_4.pt"):
        (folder / name).write_bytes((folder / "checkpoint_last.pt").read_bytes())
    call(study, study_file, "--method", "elu", "--out", out, "--", *SHORT)
    assert [path.name for path in folder.glob("checkpoint*")] == ["checkpoint_last.pt"]


@pytest.mark.slow
@pytest.mark.parametrize("flags", [["--lrr", "3"], ["--lr", "-1"], ["--max-update", "x"]])
def test_settings_that_are_wrong_end_the_study_and_leave_nothing(refused, study_file, tmp_path, flags):
    out = tmp_path / "out"
    sentence = refused(study, study_file, "--out", out, "--", *flags)
    assert flags[0] in sentence
    assert not list(out.rglob("seed*"))


@pytest.mark.slow
def test_what_a_failed_start_has_left_does_not_count(call, study_file, tmp_path):
    folder = tmp_path / "out" / "tiny" / "elu" / "seed1"
    folder.mkdir(parents=True)
    (folder / ".linear-attention-run.json").write_text('{"command": "study.sh", "fingerprint": "another"}')
    (folder / "dict.txt").write_text("of other data")
    (folder / "train.log").write_text("half a line")
    call(study, study_file, "--method", "elu", "--out", tmp_path / "out", "--", *SHORT)
    assert record(tmp_path / "out")["training"]["updates"] == 4
    assert not (folder / "dict.txt").exists() and "half a line" not in (folder / "train.log").read_text()


@pytest.mark.longest
@pytest.mark.slow
def test_the_study_of_the_documents_runs(call, tmp_path):
    """Tuned first; the second command finds the first seed done."""
    mine, out = tmp_path / "mine.yaml", tmp_path / "out"
    mine.write_text(DOCUMENTED.replace("[small]", "[tiny]").replace("updates: 1000", "updates: 2"))
    for seeds in (1, 2):
        flags = (*SHORT, "--validate-interval-updates", 2)
        call(study, mine, "--method", "mine", "--seeds", seeds, "--out", out, "--", *flags)
    found = [record(out, method="mine", seed=seed)["tuned"] for seed in (1, 2)]
    assert found[0] == found[1] and set(found[0]["tried"]) == {"0.0005", "0.001", "0.002"}
    assert found[0]["chosen"] == min(found[0]["tried"], key=found[0]["tried"].get)
    page = (out / "README.md").read_text()
    assert "| my attention | " in page and "Choosing lr by valid_loss in 3 runs of 2 updates" in page
    assert (out / "tiny-curves.png").read_bytes().startswith(b"\x89PNG")
    chosen = f"lr-{found[0]['chosen']}"
    assert not list((out / "tiny/mine" / chosen / "seed1").glob("checkpoint*.pt"))


def test_status_imports_nothing_that_takes_seconds(study_file):
    code = (
        "import sys; from lab.study.cli import main, parse; main(parse(sys.argv[1:])); "
        "assert not {'torch', 'fairseq', 'matplotlib'} & set(sys.modules)"
    )
    words = [study_file, "--status"]
    done = subprocess.run([sys.executable, "-c", code, *words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("missing") == 4


def test_a_dry_run_prints_the_commands(call, study_file, capsys):
    call(study, study_file, "--dry-run", "--", "--max-update", 7)
    out = capsys.readouterr().out
    assert out.count("fairseq-train") == 4 and out.count("--max-update 7") == 4


def test_only_the_studys_own_flags_are_worth_a_warning(call, study_file, capsys):
    """The YAML has settings of Reformer for all methods."""
    call(study, study_file, "--dry-run", "--method", "elu", "--", "--lln-a", 2)
    said = [line for line in capsys.readouterr().err.splitlines() if "does nothing" in line]
    assert said == ["WARNING: --lln-a does nothing: no layer of the model has lln attention"]


@pytest.mark.parametrize(
    ("instead", "said"),
    [
        ("norm_featuremap: 1+elu", "--norm-featuremap"),
        ("norm_feature_map: gelu", "gelu"),
        ("lr: fast", "fast"),
    ],
)
def test_a_dry_run_refuses_what_a_run_would(instead, said, refused, study_file):
    study_file.write_text(study_file.read_text().replace("norm_feature_map: 1+elu", instead))
    assert said in refused(study, study_file, "--dry-run")


def test_a_dry_run_checks_where_results_go(refused, study_file, tmp_path):
    (tmp_path / "README.md").write_text("# Mine\n")
    assert "--out" in refused(study, study_file, "--dry-run", "--out", tmp_path)


def test_the_time_left_of_a_begun_study(call, study_file, tmp_path, capsys):
    log = tmp_path / "out" / "tiny" / "softmax" / "seed1" / "train.log"
    log.parent.mkdir(parents=True)
    log.write_text("".join(inner(update, 1.0, 64) for update in (500, 1000)))  # a second per update
    call(study, study_file, "--status", "--method", "softmax,elu", "--out", tmp_path / "out")
    out = capsys.readouterr().out
    assert "tiny, softmax, seed 1: begun, at update 1,000 of 1,500" in out
    assert "time left: 33 min" in out  # of 500 and 1,500 updates


def test_every_study_is_listed(call, capsys):
    call(study, "--list")
    out = capsys.readouterr().out
    assert "35 of other choices in results/ablations" in out and "lm: 12 of 12" in out


def test_the_time_of_a_study_that_has_not_begun_is_told_by_the_committed_records(
    monkeypatch, tmp_path, capsys
):
    """Of the project's own study only: another may have its name."""
    ours = read_study("quickstart")
    monkeypatch.setattr(study, "RESULTS", tmp_path)
    first, *others = cells(ours, out=tmp_path / "quickstart")
    training = {"updates": 10, "seconds": 60.0, "curves": {}}
    write_record(first, record_of(first.key, {}, training=training))
    seconds = 6 * sum(cell.updates() for cell in (first, *others))
    new = cells(ours, out=tmp_path / "out")
    said = study.time_in_words(new)
    assert said == f"{study.in_words(seconds)} by the records of {tmp_path / 'quickstart'}"
    study.show_status(new)
    assert f"time left: {said}\n" in capsys.readouterr().out
    assert (
        study.time_in_words(cells(replace(ours, path=tmp_path / "quickstart.yaml"), out=tmp_path / "out"))
        == ""
    )


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("copy", "default: small; also paper, tiny"),
        ("recall", "default: n64; also n128, n256"),
        ("lra_text", "also 4000"),
    ],
)
def test_the_help_of_a_study_names_what_runs_on_request(name, shown):
    text = study.parser_of(read_study(name)).format_help()
    assert shown in " ".join(text.split())


def test_time_left_where_the_data_decide_the_updates(tmp_path):
    """Without data the updates of equal choices count; the time of other choices is unknown, not 0."""
    asked = {"method": ["softmax"], "task": ["CoLA", "RTE"], "lr": ["0.001"]}
    of, out = read_study("roberta_glue"), tmp_path / "out"
    first, other, second, _ = cells(of, asked, 2, out=out, data=tmp_path)
    training = {"updates": 10, "seconds": 60.0, "curves": {}}
    write_record(first, record_of(first.key, {}, training=training))
    assert (first.updates(), time_left([first, second]), time_left([second, other])) == (0, 60, None)


def test_gpus_are_counted_without_torch(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5")
    assert schedule.gpus() == ["2", "5"]
    assert schedule.placement(1, 2) == {"CUDA_VISIBLE_DEVICES": "5"}
    assert [schedule.parallel_jobs(asked) for asked in (None, 1, 2)] == [2, 1, 2]
    with pytest.raises(
        UserError, match="^--jobs is 3, but the command can use 2 GPUs; leave --jobs out, or "
    ):
        schedule.parallel_jobs(3)
    for none in ("", "-1"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", none)
        assert schedule.gpus() == []
        assert [schedule.parallel_jobs(asked) for asked in (None, 3)] == [1, 3]


@pytest.mark.slow
def test_a_process_of_a_cell_says_what_is_wrong_before_it_writes(study_file, tmp_path):
    asked, flags = {"method": ["elu"]}, ("--lr", "-1")
    [cell] = cells(read_study(study_file), asked, out=tmp_path / "out", flags=flags)
    done = forked.run([sys.executable, "-m", "lab.study.worker", *request_of(cell)], cwd=ROOT)
    assert done.returncode == SETTINGS_ARE_WRONG and done.stdout.startswith("error: ")
    with suppress(FileNotFoundError):
        assert not list(tmp_path.glob("out/**/*"))


@pytest.mark.slow
def test_damaged_data_are_a_mistake_of_their_cells_alone(tmp_path):
    data = write_lra(tmp_path / "image", "image")
    os.truncate(data / "train.pixels.npy", 100)
    asked = {"setting": ["papers"], "task": ["image"], "method": ["lln"]}
    cell, *_ = cells(read_study("lra"), asked, out=tmp_path / "out", data=data)
    done = forked.run([sys.executable, "-m", "lab.study.worker", *request_of(cell)], cwd=ROOT)
    assert done.returncode == 1 and "train.pixels.npy" in done.stdout and done.stdout.startswith("error: ")


@pytest.mark.slow
def test_an_interruption_ends_what_the_cells_train(study_file, tmp_path, monkeypatch):
    flags = ("--log-interval", "1", "--max-update", "1000000", "--no-save", "--disable-validation")
    [cell] = cells(read_study(study_file), {"method": ["elu"]}, out=tmp_path / "out", flags=flags)
    started, start = [], schedule.start

    def note(*arguments):
        started.append(start(*arguments))
        return started[-1]

    def interrupted(running):
        alive = lambda: running[0].process.poll() is None  # noqa: E731
        wait_for('"num_updates"', cell.folder / LOG, alive)
        raise KeyboardInterrupt

    monkeypatch.setattr(schedule, "start", note)
    monkeypatch.setattr(schedule, "wait_for_one", interrupted)
    with pytest.raises(KeyboardInterrupt):
        schedule.run_cells([cell], 1, (), lambda cell: "")
    assert started[0].process.poll() is not None
