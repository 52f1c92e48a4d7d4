"""Full disks, Ctrl-C, killed runs, second runs: the named folder is complete or not there."""

import json
import os
import resource
import select
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.helpers import forked
from tests.helpers.logs import wait_for


def limit_file_size(size):
    """Like a full disk: no file may grow beyond `size` bytes."""
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def arguments_for(source, dest):
    return ["wikitext-2", "--from", source, "--dest", dest, "--allow-unverified"]


@pytest.mark.parametrize("size", [100_000, 400_000])
def test_disk_full_while_reading_or_encoding(run, refused, small_corpus, tmp_path, size):
    dest = tmp_path / "out" / "data"
    arguments = arguments_for(small_corpus, dest)
    result = run("wikitext", *arguments, preexec_fn=limit_file_size(size))
    assert f"no space left on the disk of {dest}" in refused(result)
    assert not dest.parent.exists()


def test_disk_full_in_fairseq_preprocess(run, refused, tmp_path):
    source, dest = tmp_path / "source", tmp_path / "out" / "data"
    source.mkdir()
    # One letter a line: the index is larger than the text, so the limit hits it alone.
    for split, lines in (("train", 20_000), ("valid", 1), ("test", 1)):
        (source / f"{split}.txt").write_text("a\n" * lines)
    arguments = arguments_for(source, dest)
    result = run("wikitext", *arguments, preexec_fn=limit_file_size(100_000))
    assert "fairseq-preprocess" in result.stdout
    assert f"no space left on the disk of {dest}" in refused(result)
    assert not dest.parent.exists()


def wait_for_line(process, beginning):
    for line in process.stdout:
        if line.startswith(beginning):
            return
    raise AssertionError(f"the script ended without {beginning!r}: {process.stderr.read()}")


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_run_leaves_nothing_and_a_second_one_succeeds(start, run, small_corpus, tmp_path, stop):
    dest = tmp_path / "out" / "data"
    arguments = arguments_for(small_corpus, dest)
    process = start("wikitext", *arguments)
    wait_for_line(process, "fairseq-preprocess")
    time.sleep(0.5)
    process.send_signal(stop)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 128 + stop
    assert "Traceback" not in errors
    assert not dest.parent.exists()
    if stop == signal.SIGINT:
        assert run("wikitext", *arguments).returncode == 0
        assert (dest / "preparation.json").exists()


def test_killed_run_leaves_a_folder_that_the_next_one_clears(start, run, small_corpus, tmp_path):
    dest = tmp_path / "data"
    arguments = arguments_for(small_corpus, dest)
    process = start("wikitext", *arguments)
    wait_for_line(process, "valid:")
    process.kill()
    process.communicate()
    left = tmp_path / "data.preparing"
    assert left.is_dir()
    assert not dest.exists()
    (left / "rubbish").mkdir()
    assert run("wikitext", *arguments).returncode == 0
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
    assert not (dest / "rubbish").exists()


def test_killed_run_takes_fairseq_preprocess_with_it(start, small_corpus, tmp_path):
    """It ends before it has done its work."""
    process = start("wikitext", *arguments_for(small_corpus, tmp_path / "data"))
    wait_for_line(process, "fairseq-preprocess")
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while not (pids := children.read_text().split()):
        pass
    child = os.pidfd_open(int(pids[0]))
    process.kill()
    assert select.select([child], [], [], 60)[0]
    process.communicate()
    assert not (tmp_path / "data.preparing" / "test.idx").exists()


def test_folder_of_somebody_else_is_not_cleared(run, tmp_path):
    foreign = tmp_path / "data.preparing"
    foreign.mkdir()
    (foreign / "thesis.tex").write_text("precious")
    result = run("bundled_corpus", "--dest", tmp_path / "data")
    assert result.returncode == 1
    assert result.stderr.startswith(f"error: {foreign} holds what data-prep has not written")
    assert [path.name for path in tmp_path.rglob("*")] == ["data.preparing", "thesis.tex"]


def test_two_runs_at_once(tmp_path):
    command = [sys.executable, "-m", "pipeline", "data.bundled_corpus", "--dest", tmp_path / "data"]
    first = forked.start(command)
    wait_for("train:", first.logs[0], first.process.is_alive)
    second = forked.start(command)
    assert "is ready" in first.wait(check=True).stdout
    output = second.wait(check=True).stdout
    assert "Waiting for another run" in output
    assert "is ready" in output
    assert "fairseq-preprocess" not in output
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_second_run_is_ready_at_once(run, refused, small_corpus, small_prepared, tmp_path):
    before = {path.name: path.stat().st_mtime_ns for path in small_prepared.iterdir()}
    arguments = arguments_for(small_corpus, small_prepared)
    arguments += ["--tokenizer", "sentencepiece", "--vocab-size", 1000]
    result = run("wikitext", *arguments)
    assert result.returncode == 0
    assert "is ready" in result.stdout
    assert before == {path.name: path.stat().st_mtime_ns for path in small_prepared.iterdir()}
    sentence = refused(run("wikitext", *arguments[:-1], 2000))
    assert "vocabulary 1000, not 2000" in sentence
    sentence = refused(run("wikitext", *arguments[:-4]))
    assert "tokenizer sentencepiece, not words" in sentence


def test_damaged_and_foreign_folders_are_refused(run, refused, tmp_path):
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.tex").write_text("precious")
    sentence = refused(run("bundled_corpus", "--dest", foreign))
    assert "holds no prepared corpus" in sentence
    assert (foreign / "thesis.tex").exists()
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    (damaged / "train.bin").write_bytes(b"12345")
    content = {"corpus": "python-reference", "files": {"train.bin": 6}}
    (damaged / "preparation.json").write_text(json.dumps(content))
    sentence = refused(run("bundled_corpus", "--dest", damaged))
    assert "train.bin is missing or not 6 bytes long" in sentence


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_folder_without_permission(run, refused, tmp_path):
    tmp_path.chmod(0o500)
    try:
        sentence = refused(run("bundled_corpus", "--dest", tmp_path / "data"))
    finally:
        tmp_path.chmod(0o700)
    assert "--dest" in sentence and str(tmp_path / "data") in sentence


@pytest.mark.parametrize("script", ["wikitext.sh", "bundled_corpus.sh", "roberta.sh", "glue.sh"])
def test_shell_scripts_explain_themselves(script, data_prep, tmp_path):
    import subprocess
    import sys

    result = subprocess.run(
        [data_prep / script, "--help"],
        cwd=tmp_path,
        env={**os.environ, "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.startswith(f"usage: data-prep/{script}")
