"""Which checkpoint a run resumes from, the lock of its folder, and --fresh."""

import errno
import os
import shlex
import shutil
from pathlib import Path

import pytest
import torch

from lab.errors import UserError, explain
from lab.files import run_lock, write_json
from lab.run.checkpoint import find_resume_point, newest_whole, read_whole, result_beside
from lab.run.folder import RunFolder, left_by_a_run, move_aside
from lab.run.train import complete_save, is_finished, take_up
from tests.helpers.damages import DAMAGES

TRAIN_LM = "scripts/train_lm.sh"


def write(path, updates, score=1.0, best=0.5):
    """A checkpoint as far as resuming looks at it."""
    state = {"model": {"weight": torch.full((1000,), float(updates))}, "cfg": {"model": {"_name": "a"}}}
    state["optimizer_history"] = [{"num_updates": updates}]
    state["extra_state"] = {"val_loss": score, "best": best}
    torch.save(state, path)


def test_newest_by_update_number_not_by_time(tmp_path):
    for name, updates, time in (("checkpoint_1_50.pt", 50, 100), ("checkpoint_1_25.pt", 25, 200)):
        write(tmp_path / name, updates)
        os.utime(tmp_path / name, (time, time))
    assert newest_whole(tmp_path).path.name == "checkpoint_1_50.pt"
    write(tmp_path / "checkpoint_last.pt", 50)
    assert newest_whole(tmp_path).path.name == "checkpoint_last.pt"
    write(tmp_path / "checkpoint_2_75.pt", 75)
    assert newest_whole(tmp_path).path.name == "checkpoint_2_75.pt"


@pytest.mark.parametrize("kind", DAMAGES)
def test_damaged_ones_are_passed_over(tmp_path, kind):
    write(tmp_path / "checkpoint_last.pt", 50)
    DAMAGES[kind](tmp_path / "checkpoint_last.pt", tmp_path / "trace")
    with pytest.raises(UserError, match=r"no checkpoint in .* is whole .*--fresh"):
        find_resume_point(tmp_path)
    write(tmp_path / "checkpoint_1_25.pt", 25)
    assert find_resume_point(tmp_path).updates == 25
    assert not (tmp_path / "trace").exists()


def test_one_that_may_not_be_read_is_not_passed_over(tmp_path, monkeypatch):
    """It may be intact: resuming would take another one, or start over and replace it."""
    for name, updates in (("checkpoint_last.pt", 50), ("checkpoint_1_25.pt", 25)):
        write(tmp_path / name, updates)

    def opened(path, *how):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "open", opened)  # root may read everything
    with pytest.raises(PermissionError) as error:
        newest_whole(tmp_path)
    assert explain(error.value) == f"{tmp_path / 'checkpoint_1_25.pt'}: Permission denied"


def test_a_folder_in_place_of_the_checkpoint(tmp_path):
    (tmp_path / "checkpoint_last.pt").mkdir()
    with pytest.raises(UserError, match=r"is a folder where a checkpoint belongs"):
        find_resume_point(tmp_path)


@pytest.mark.parametrize(("score", "best"), [(0.5, 50), (0.7, 25)])
def test_an_interrupted_save_is_completed(tmp_path, score, best):
    """Killed after the new checkpoint was renamed and before it was copied to last and best."""
    for name in ("checkpoint_last.pt", "checkpoint_best.pt"):
        write(tmp_path / name, 25, score=0.6, best=0.6)
    write(tmp_path / "checkpoint_1_50.pt", 50, score=score, best=min(score, 0.6))
    for name in ("last", "9_9"):
        (tmp_path / f".01234567.checkpoint_{name}.pt.tmp").write_bytes(b"half")
    complete_save(find_resume_point(tmp_path))
    saved = {
        path.name: torch.load(path)["optimizer_history"][0]["num_updates"] for path in tmp_path.iterdir()
    }
    assert saved == {"checkpoint_last.pt": 50, "checkpoint_1_50.pt": 50, "checkpoint_best.pt": best}


def test_fresh_removes_nothing(tmp_path, capsys):
    write(tmp_path / "checkpoint_last.pt", 25)
    (tmp_path / "thesis.tex").write_text("precious")
    (tmp_path / "checkpoint_last.test.carried.md").write_text("measured with the old weights")
    (tmp_path / "earlier-1").mkdir()
    move_aside(tmp_path, left_by_a_run(tmp_path))
    assert "earlier-2: checkpoint_last.pt, checkpoint_last.test.carried.md" in capsys.readouterr().out
    assert (tmp_path / "earlier-2" / "checkpoint_last.pt").is_file() and (tmp_path / "thesis.tex").is_file()
    assert find_resume_point(tmp_path) is None


def test_fresh_moves_a_file_once_whose_name_has_two_endings(tmp_path):
    for name in ("checkpoint_best.pt", "checkpoint_best.pt.json"):
        (tmp_path / name).write_text(name)
    move_aside(tmp_path, left_by_a_run(tmp_path))
    assert sorted(path.name for path in (tmp_path / "earlier-1").iterdir()) == [
        "checkpoint_best.pt",
        "checkpoint_best.pt.json",
    ]


def test_fresh_keeps_what_the_earlier_checkpoints_need_and_takes_another_dictionary(
    corpus, trained, tmp_path
):
    folder, data = tmp_path / "run", tmp_path / "data"
    shutil.copytree(trained, folder)
    shutil.copytree(corpus, data)
    with (data / "dict.txt").open("a") as file:
        file.write("more 1\n")
    for name in ("run.json", "glue_task.json"):
        (folder / name).write_text(f"{name} of the earlier run")
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    assert take_up(RunFolder(folder), data, None, fresh=True) is None
    aside = folder / "earlier-1"
    for name in ("checkpoint_last.pt", "train.log", "dict.txt", "data.json", "run.json", "glue_task.json"):
        assert (aside / name).read_bytes() == before[name]
    assert (folder / "dict.txt").read_bytes() == (data / "dict.txt").read_bytes()


def test_fresh_leaves_the_dictionary_where_the_run_lies_beside_its_data(corpus, tmp_path, monkeypatch):
    for path in corpus.iterdir():
        if path.name != "preparation.json":  # as fairseq-preprocess leaves them
            shutil.copy(path, tmp_path / path.name)
    write(tmp_path / "checkpoint_last.pt", 25)
    monkeypatch.chdir(tmp_path)
    assert take_up(RunFolder(tmp_path), Path("."), None, fresh=True) is None
    assert (tmp_path / "dict.txt").read_bytes() == (corpus / "dict.txt").read_bytes()
    assert [path.name for path in (tmp_path / "earlier-1").iterdir()] == ["checkpoint_last.pt"]


def test_a_start_appends_to_no_log_of_one_that_saved_nothing(corpus, tmp_path, capsys):
    log, curves = tmp_path / "train.log", tmp_path / "tensorboard" / "train" / "events.out.tfevents.1"
    log.write_text("of other software\n")
    assert take_up(RunFolder(tmp_path), corpus, None) is None
    assert log.is_file() and not capsys.readouterr().out  # nothing had begun here
    curves.parent.mkdir(parents=True)
    for path in (log, curves):
        path.write_text("of a training that was killed\n")
    assert take_up(RunFolder(tmp_path), corpus, None) is None
    aside = tmp_path / "earlier-1"
    assert (
        capsys.readouterr().out
        == f"the earlier training has left no checkpoint; moved to {aside}: train.log, tensorboard\n"
    )
    for path in (log, curves):
        assert not path.exists()
        assert (aside / path.relative_to(tmp_path)).read_text() == "of a training that was killed\n"
    assert take_up(RunFolder(tmp_path), corpus, None) is None
    assert not (tmp_path / "earlier-2").exists()


def test_a_run_that_resumes_goes_on_with_its_log(corpus, trained, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    shutil.copytree(trained, folder)
    monkeypatch.setattr("lab.run.train.check_same_run", lambda *unused: None)
    before = (folder / "train.log").read_bytes()
    assert take_up(RunFolder(folder), corpus, None) is not None
    assert (folder / "train.log").read_bytes() == before and any(folder.glob("tensorboard/**/events*"))


@pytest.mark.parametrize(("saved", "other"), [("best", "last"), ("last", "best")])
def test_the_only_checkpoint_is_the_one_asked_for(saved, other, tmp_path):
    run = RunFolder(tmp_path)
    path = tmp_path / f"checkpoint_{saved}.pt"
    path.touch()
    assert run.checkpoint(saved) == run.checkpoint(other) == path
    run.keep_only(run.checkpoint(other))
    assert path.is_file()


def test_second_run_is_refused_while_the_first_holds_the_folder(tmp_path):
    sentence = rf"in use by process {os.getpid()} on .*; wait until that run has ended"
    with run_lock(tmp_path), pytest.raises(UserError, match=sentence), run_lock(tmp_path):
        pass
    with run_lock(tmp_path):
        pass


def test_finished_run_is_left_as_it_is(call, config, corpus, trained, tmp_path, capsys):
    folder = tmp_path / "run"
    shutil.copytree(trained, folder)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.suffix in (".pt", ".log")}
    call(TRAIN_LM, config, corpus, "--gpus", 0, "--save-dir", folder)
    *said, done, advice = capsys.readouterr().out.splitlines()
    assert any("finished" in line for line in said)
    assert before == {path: path.stat().st_mtime_ns for path in before}
    assert done.startswith(f"done: {folder / 'checkpoint_best.pt'} of update 4, the best on valid (loss ")
    command = shlex.split(advice.partition(": ")[2])
    assert command == ["scripts/eval_ppl.sh", str(folder / "checkpoint_best.pt"), str(corpus)]


def test_the_last_save_of_a_finished_run_is_completed(call, config, corpus, trained, tmp_path, capsys):
    """Killed after the last checkpoint was renamed, before it was copied: what is measured is not older."""
    folder = tmp_path / "run"
    shutil.copytree(trained, folder)
    last = folder / "checkpoint_last.pt"
    shutil.copy(last, folder / "checkpoint_1_4.pt")
    older = torch.load(last)
    older["optimizer_history"][-1]["num_updates"] = 2
    torch.save(older, last)
    (folder / ".01234567.checkpoint_last.pt.tmp").write_bytes(b"half")
    call(TRAIN_LM, config, corpus, "--gpus", 0, "--save-dir", folder)
    assert "checkpoint_1_4.pt has made 4 updates; nothing to do" in capsys.readouterr().out
    assert read_whole(last).updates == 4 and not [*folder.glob(".*.tmp")]


def test_a_run_is_finished_at_its_last_update(tmp_path):
    write(tmp_path / "checkpoint_last.pt", 50)
    start = find_resume_point(tmp_path)
    assert [is_finished(start, last) for last in (49, 50, 51, None)] == [True, True, False, False]
    assert not is_finished(None, 50)


def test_a_start_has_failed_if_it_left_its_data_and_no_checkpoint_at_all(tmp_path):
    assert not RunFolder(tmp_path).is_failed_start
    write_json(tmp_path / "data.json", {"data": "d", "fingerprint": "f"})
    assert RunFolder(tmp_path).is_failed_start
    write(tmp_path / "checkpoint_1_50.pt", 50)  # killed before it became the last one, too
    assert not RunFolder(tmp_path).is_failed_start


def test_what_may_change(call, config, corpus, trained, tmp_path, capsys):
    """The user's settings, and settings that do not change the computation."""
    folder = tmp_path / "run"
    shutil.copytree(trained, folder)
    run = (TRAIN_LM, config, corpus, "--gpus", 0, "--save-dir", folder)
    call(*run, "--save-interval-updates", 3, "--log-interval", 2, "--num-workers", 1)
    changed = ("--lr", 0.1, "--batch-size", 4, "--dropout", 0.5)
    call(*run, *changed, "--allow-changed", "dropout", "lr", "batch_size")
    assert capsys.readouterr().out.count("finished") == 2


def test_other_data_of_the_same_dictionary_are_refused(refused, config, corpus, trained, tmp_path):
    folder, data = tmp_path / "run", tmp_path / "data"
    shutil.copytree(trained, folder)
    shutil.copytree(corpus, data)
    for suffix in ("idx", "bin"):
        shutil.copy(data / f"valid.{suffix}", data / f"train.{suffix}")
    sentence = refused(TRAIN_LM, config, data, "--gpus", 0, "--save-dir", folder)
    assert "holds a run on other training data" in sentence and "--allow-changed data" in sentence


def test_checkpoints_without_an_ending_have_results_of_their_own():
    found = [result_beside(Path("run", name), ".test.json").name for name in ("lm.1000", "lm.2000", "lm.pt")]
    assert found == ["lm.1000.test.json", "lm.2000.test.json", "lm.test.json"]
