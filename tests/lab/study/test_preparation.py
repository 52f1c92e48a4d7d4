"""Data that a study prepares first, and its messages if that fails. Nothing is downloaded here."""

import os
import select
import subprocess
import sys
from dataclasses import replace

import pytest

from lab.errors import UserError
from lab.files import ROOT
from lab.study import preparation
from lab.study.declaration import read_study
from tests.lab.study.conftest import cells

NO_DOWNLOAD = "no download from x (no route); try again later, or name a folder with --from"
COMMAND = "data-prep/wikitext.sh wikitext-2 --dest data/x"


@pytest.mark.parametrize(
    ("ends", "message", "lines"),
    [
        (
            f"echo a warning >&2; echo 'error: {NO_DOWNLOAD}' >&2; exit 1",
            f"^no download from x .no route.; prepare the data with {COMMAND}, see its --help$",
            "a warning\n",
        ),
        ("echo 'error: the disk is full; free some' >&2; exit 1", "^the disk is full; free some$", ""),
        ("echo 'error: /nope does not exist' >&2; exit 1", "^/nope does not exist$", ""),
        ("echo odd >&2; exit 3", "see the reason above", "odd\n"),
        ("exit 3", "see the reason above", ""),
    ],
)
def test_a_failed_preparation_is_one_sentence(ends, message, lines, tmp_path, monkeypatch, capfd):
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\n[ "$1 $2 $3" = "-m lab data-prep/wikitext.sh" ] || exit\n{ends}\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    for module in ("study.preparation", "provenance"):
        monkeypatch.setattr(f"lab.{module}.ROOT", tmp_path)
    with pytest.raises(UserError, match=message):
        preparation.run_script("wikitext.sh", "wikitext-2", "--dest", tmp_path / "data" / "x")
    assert capfd.readouterr().err == lines


def test_only_the_folder_of_data_that_is_missing_is_prepared(monkeypatch, tmp_path):
    done = []
    monkeypatch.setattr(preparation, "ROOT", tmp_path)
    monkeypatch.setattr("lab.run.recipe.ROOT", tmp_path)
    monkeypatch.setattr(preparation, "run_script", lambda *words: done.append(words))
    with pytest.raises(UserError, match="no data folder .*digits"):
        preparation.prepare_data(cells(read_study("images"), {"preset": ["digits"]}), None)
    assert done == [("images.sh", "digits", "--dest", "data/images/digits")]


def test_a_source_is_never_ignored(monkeypatch, tmp_path):
    """The script refuses data that are there and were prepared from another source."""
    done, raw, words = [], tmp_path / "raw", {"preset": ["digits"]}
    monkeypatch.setattr(preparation, "ROOT", tmp_path)
    monkeypatch.setattr("lab.run.recipe.ROOT", tmp_path)
    monkeypatch.setattr(preparation, "run_script", lambda *words: done.append(words))
    monkeypatch.setattr(preparation, "identify", lambda folder: None)
    (tmp_path / "data" / "images" / "digits").mkdir(parents=True)
    preparation.prepare_data(cells(read_study("images"), words), None)
    assert done == []
    preparation.prepare_data(cells(read_study("images"), words), raw)
    assert done == [("images.sh", "digits", "--dest", "data/images/digits", "--from", str(raw))]
    study = replace(read_study("images"), prepare={})
    with pytest.raises(UserError, match="--source names raw data, but no script makes .*digits of them"):
        preparation.prepare_data(cells(study, words), raw)


def test_a_preparation_ends_with_the_command_that_has_started_it(tmp_path):
    python = tmp_path / "python"
    waits = "import os, signal; os.write(1, b'%d\\n' % os.getpid()); signal.pause()"
    (tmp_path / "waits.py").write_text(
        f"from lab.console import run_command\ndef main():\n    {waits}\nrun_command(main)\n"
    )
    python.write_text(f"#!/bin/sh\nexec {sys.executable} {tmp_path / 'waits.py'}\n")
    python.chmod(0o755)
    starts = f"import sys; from lab.study import preparation; sys.executable = {str(python)!r}"
    starts += "; preparation.run_script('waits.sh')"
    command, path = [sys.executable, "-c", starts], {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=path) as parent:
        child = os.pidfd_open(int(parent.stdout.readline()))
        parent.kill()
        assert select.select([child], [], [], 60)[0], "it outlives the process that started it"
    os.close(child)
