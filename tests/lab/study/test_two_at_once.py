"""A second command in the folder of a study that runs is refused at its start, and leaves no trace."""

import shutil
import threading
import time
from pathlib import Path

import pytest

from conventions import LOCK
from lab.commands import finetune_glue
from lab.errors import UserError
from lab.files import run_lock
from lab.study import cli as study
from lab.study.declaration import read_study, study_names
from lab.study.schema import GIVEN


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(study, "SECONDS_TO_END", 0)


def check(sentence, out, folder):
    """It names the folder and the option, and the lock is the first command's as before."""
    assert f"{folder} is in use by process" in sentence and sentence.endswith("choose another --out")
    assert list(out.rglob("*")) == [folder, folder / LOCK]


@pytest.mark.parametrize("name", [name for name in study_names() if read_study(name).start != GIVEN])
def test_study(refused, tmp_path, name):
    """Also where its data or the checkpoint it starts from are missing: the lock comes first."""
    out = tmp_path / "out"
    first = next(iter(read_study(name).axes.values())).usual[0]
    folder = out / first
    folder.mkdir(parents=True)
    with run_lock(folder):
        for _ in range(2):
            check(refused(study, name, "--out", out), out, folder)


def test_a_lock_that_was_removed_is_taken_again(tmp_path, monkeypatch):
    """A command that has failed early removes it, while another command waits for the lock."""
    folder, asked, sleep = tmp_path / "out", threading.Event(), time.sleep
    folder.mkdir()
    monkeypatch.setattr(time, "sleep", lambda seconds: asked.set() or sleep(seconds))

    def wait():
        with run_lock(folder, patience=20):
            waits.set()
            ends.wait(20)

    waits, ends, second = threading.Event(), threading.Event(), threading.Thread(target=wait)
    with run_lock(folder):
        second.start()
        assert asked.wait(20)
        shutil.rmtree(folder)
    assert waits.wait(20)
    with pytest.raises(UserError, match="is in use by"), run_lock(folder):
        pass
    ends.set()
    second.join()


def test_a_folder_that_vanishes_while_it_is_made_is_made_again(tmp_path, monkeypatch):
    mkdir, removals = Path.mkdir, [True]

    def vanishing(path, *arguments, **options):
        if removals and removals.pop():
            raise FileExistsError(path)
        mkdir(path, *arguments, **options)

    monkeypatch.setattr(Path, "mkdir", vanishing)
    with run_lock(tmp_path / "out"):
        assert (tmp_path / "out").is_dir()
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError), run_lock(tmp_path / "file"):
        pass


def test_fine_tuning(refused, pretrained, glue, tmp_path):
    out = tmp_path / "out"
    folder = out / "MNLI"
    folder.mkdir(parents=True)
    words = [pretrained / "checkpoint_last.pt", "--data", glue, "--out", out]
    with run_lock(folder):
        for _ in range(2):
            check(refused(finetune_glue, *words), out, folder)
