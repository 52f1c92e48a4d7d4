"""Full disks, Ctrl-C, killed runs, second runs: the named folder is complete or not there."""

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from lab.children import was_interrupted
from lab.data.preparation import prepare_once, write_manifest
from lab.errors import UserError
from tests.helpers import forked
from tests.helpers.logs import wait_for
from tests.helpers.prepared import as_wikitext2, write_splits


@pytest.mark.parametrize("size", [100_000, 400_000])
def test_disk_full_while_reading_or_encoding(full_disk, refused, small_corpus, tmp_path, size):
    dest = tmp_path / "out" / "data"
    with full_disk(size):
        sentence = refused(*as_wikitext2(small_corpus, dest))
    assert f"no space left on the disk of {dest}" in sentence
    assert not dest.parent.exists()


def test_disk_full_while_writing_rows(full_disk, refused, tmp_path, capsys):
    # One letter a line: the index is larger than the text, so the limit hits it alone.
    source = write_splits(tmp_path / "source", train="a\n" * 20_000, valid="a\n", test="a\n")
    dest = tmp_path / "out" / "data"
    with full_disk(100_000):
        sentence = refused(*as_wikitext2(source, dest))
    assert "Binarising train" in capsys.readouterr().out
    assert f"no space left on the disk of {dest}" in sentence
    assert not dest.parent.exists()


def wait_for_line(process, beginning):
    for line in process.stdout:
        if line.startswith(beginning):
            return
    raise AssertionError(f"the script ended without {beginning!r}: {process.stderr.read()}")


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_run_leaves_nothing_and_a_second_one_succeeds(start, call, small_corpus, tmp_path, stop):
    dest = tmp_path / "out" / "data"
    process = start(*as_wikitext2(small_corpus, dest))
    wait_for_line(process, "train:")
    process.send_signal(stop)
    _, errors = process.communicate(timeout=300)
    assert "Traceback" not in errors
    assert not dest.parent.exists()
    if stop == signal.SIGTERM:
        assert process.returncode == 128 + stop
        return
    assert was_interrupted(process.returncode)
    assert errors == "error: interrupted; run the same command again\n"
    call(*as_wikitext2(small_corpus, dest))
    assert (dest / "preparation.json").exists()


def test_killed_run_leaves_a_folder_that_the_next_one_clears(start, call, small_corpus, tmp_path):
    dest = tmp_path / "data"
    process = start(*as_wikitext2(small_corpus, dest))
    wait_for_line(process, "valid:")
    process.kill()
    process.communicate()
    left = tmp_path / "data.preparing"
    assert left.is_dir()
    assert not dest.exists()
    (left / "rubbish").mkdir()
    call(*as_wikitext2(small_corpus, dest))
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
    assert not (dest / "rubbish").exists()


def test_folder_of_somebody_else_is_not_cleared(refused, tmp_path):
    foreign = tmp_path / "data.preparing"
    foreign.mkdir()
    (foreign / "thesis.tex").write_text("precious")
    sentence = refused("data-prep/bundled_corpus.sh", "--dest", tmp_path / "data")
    assert sentence.startswith(f"error: {foreign} holds files that this command has not written")
    assert [path.name for path in tmp_path.rglob("*")] == ["data.preparing", "thesis.tex"]


def made(folder):
    (folder / "a.txt").write_text("a")
    return write_manifest(folder, {"splits": {}})


@pytest.mark.parametrize("exists", [True, False])
def test_a_link_is_followed(tmp_path, exists):
    if exists:
        (tmp_path / "disk").mkdir()
    (tmp_path / "data").symlink_to(tmp_path / "disk")
    assert prepare_once(tmp_path / "data", made)["files"] == {"a.txt": 1}
    assert (tmp_path / "data").is_symlink() and (tmp_path / "disk" / "a.txt").is_file()
    assert {path.name for path in tmp_path.iterdir()} == {"data", "disk"}


def test_a_mount_point_is_refused_before_the_work(tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "is_mount", lambda path: path == tmp_path / "data")
    with pytest.raises(UserError, match="data is a mount point; name a folder inside it"):
        prepare_once(tmp_path / "data", made)


def test_two_runs_at_once(tmp_path):
    command = [sys.executable, "-m", "lab", "data-prep/bundled_corpus.sh", "--dest", tmp_path / "data"]
    first = forked.start(command)
    wait_for("train:", first.logs[0], first.process.is_alive)
    os.kill(first.process.pid, signal.SIGSTOP)
    second = forked.start(command)
    wait_for("Waiting for another run", second.logs[0], second.process.is_alive)
    os.kill(first.process.pid, signal.SIGCONT)
    assert "is ready" in first.wait(check=True).stdout
    output = second.wait(check=True).stdout
    assert "is ready" in output
    assert "Binarising" not in output
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_damaged_and_foreign_folders_are_refused(refused, tmp_path):
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.tex").write_text("precious")
    sentence = refused("data-prep/bundled_corpus.sh", "--dest", foreign)
    assert "holds no prepared corpus" in sentence
    assert (foreign / "thesis.tex").exists()
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    (damaged / "train.bin").write_bytes(b"12345")
    content = {"corpus": "python-reference", "files": {"train.bin": 6}}
    (damaged / "preparation.json").write_text(json.dumps(content))
    sentence = refused("data-prep/bundled_corpus.sh", "--dest", damaged)
    assert "train.bin is missing or not 6 bytes long" in sentence


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_folder_without_permission(refused, tmp_path):
    tmp_path.chmod(0o500)
    try:
        sentence = refused("data-prep/bundled_corpus.sh", "--dest", tmp_path / "data")
    finally:
        tmp_path.chmod(0o700)
    assert "--dest" in sentence and str(tmp_path / "data") in sentence
