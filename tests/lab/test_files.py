"""Results are made once and never mixed with results of other settings."""

import errno
import json
import math
import os

import pytest

from conventions import LOCK
from conventions.files import open_lock, open_to_append, replacing
from lab import files
from lab.errors import UserError, explain
from lab.files import RUN_MARK, begin, fingerprint, finished, is_run, once, read_json, run_lock, write_json
from user_dir.fairseq_patches.checkpoints import write_durably


def test_a_fingerprint_is_that_of_the_content():
    assert fingerprint({"a": 1, "b": [2]}) == fingerprint({"b": [2], "a": 1})
    assert fingerprint({"a": 1}) != fingerprint({"a": 2})


def test_a_result_is_made_once(tmp_path, capsys):
    path, calls = tmp_path / "folder" / "result.json", []

    def make():
        calls.append(1)
        return {"value": len(calls)}

    for _ in range(2):
        assert once(path, "mark", make, "a title") == {"fingerprint": "mark", "value": 1}
    assert calls == [1] and read_json(path)["value"] == 1
    assert capsys.readouterr().out.startswith("a title: done before (")


def test_a_record_that_another_process_moves_away_is_missing_not_damaged(tmp_path, monkeypatch):
    path = tmp_path / "seed1.json"
    write_json(path, {"fingerprint": "one"})

    def read_too_late(path):
        path.unlink()
        return read_json(path)

    monkeypatch.setattr(files, "read_json", read_too_late)
    assert finished(path, "one") is None
    monkeypatch.undo()
    path.write_text("{")
    with pytest.raises(UserError, match="seed1.json cannot be read as JSON"):
        finished(path, "one")


def test_a_result_of_other_settings_is_refused_and_kept(tmp_path):
    path = tmp_path / "result.json"
    once(path, "one", dict, "")
    with pytest.raises(UserError, match="result.json was made .* .fingerprint one instead of two"):
        once(path, "two", dict, "")
    assert read_json(path) == {"fingerprint": "one"}


def test_the_folder_of_a_run_is_taken_up_by_the_same_settings_only(tmp_path):
    folder = tmp_path / "run"
    begin(folder, "train.sh", "one")
    (folder / "checkpoint").touch()
    begin(folder, "train.sh", "one")
    with pytest.raises(UserError, match="fingerprint one instead of two"):
        begin(folder, "train.sh", "two")
    with pytest.raises(UserError, match="holds files that this command has not written"):
        begin(folder, "other.sh", "one")
    assert (folder / "checkpoint").exists()


def test_a_run_killed_while_it_marked_its_folder_starts_again(tmp_path):
    (tmp_path / f".01234567.{RUN_MARK}.part").write_text('{"comm')
    begin(tmp_path, "train.sh", "one")
    assert is_run(tmp_path, "train.sh") and len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("name", ["settings.json", "fingerprint", "result.json"])
def test_the_folder_of_somebody_else_is_no_run_of_ours(tmp_path, name):
    (tmp_path / name).write_text("{}")
    with pytest.raises(UserError, match="holds files that this command has not written"):
        begin(tmp_path, "quickstart.sh", "one")
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_what_a_full_disk_has_no_room_for_is_named(tmp_path):
    with pytest.raises(OSError) as error, replacing(tmp_path / "a.json"):
        raise OSError(errno.ENOSPC, "full")
    assert explain(error.value) == f"the disk is full while writing {tmp_path / 'a.json'}; free some space"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "write", [lambda path: write_json(path, {}), lambda path: write_durably(str(path), lambda file: None)]
)
def test_files_that_look_like_half_of_ours_are_kept(write, tmp_path):
    """The next file of that name removes the leftovers of a killed process, unless one still writes them."""
    names = ("a.pt.part", "a.pt.tmp", ".part", "a.pt", ".notes123.a.pt.part", ".01234567.b.pt.tmp")
    for name in names:
        (tmp_path / name).write_text(name)
    outside = tmp_path / "outside"
    outside.write_text("outside")
    (tmp_path / ".89abcdef.a.pt.part").symlink_to(outside)
    left = [tmp_path / f".01234567.a.pt{ending}" for ending in (".part", ".tmp")]
    for path in left:
        path.touch()
    (tmp_path / "a.pt").unlink()
    with replacing(tmp_path / "a.pt") as first, replacing(tmp_path / "a.pt", ".tmp") as second:
        write(tmp_path / "a.pt")
        assert first.is_file() and second.is_file() and not any(path.exists() for path in left)
        first.touch(), second.touch()
    assert outside.read_text() == "outside" and (tmp_path / ".89abcdef.a.pt.part").is_symlink()
    assert {path.name for path in tmp_path.iterdir()} == {*names, "outside", ".89abcdef.a.pt.part"}


@pytest.mark.parametrize("kind", ["text", "link", "pipe"])
def test_a_lock_or_log_of_somebody_else_is_refused(kind, tmp_path):
    target = tmp_path / "target"
    target.write_text("precious")
    for name, opens in ((LOCK, open_lock), ("train.log", open_to_append)):
        path = tmp_path / name
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "link":
            path.symlink_to(target)
        else:
            path.write_text("precious")
        if (kind, opens) == ("text", open_to_append):
            continue  # any text may be a log
        with pytest.raises(UserError, match=f"{name} is .*; move it away"):
            opens(path)
        assert target.read_text() == "precious" and (kind == "pipe" or path.read_text() == "precious")


def test_a_folder_on_a_full_disk_is_locked(tmp_path, monkeypatch):
    def write(*_):
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr("os.write", write)
    with (
        run_lock(tmp_path),
        pytest.raises(UserError, match="is in use by another process"),
        run_lock(tmp_path),
    ):
        pass
    assert (tmp_path / LOCK).read_bytes() == b""


def test_json_has_no_number_that_is_none(tmp_path):
    path = tmp_path / "x.json"
    write_json(path, {"loss": math.nan, "curve": [(1, math.inf), (2, 3.0)]})
    assert json.loads(path.read_text(), parse_constant=pytest.fail) == {
        "loss": None,
        "curve": [[1, None], [2, 3.0]],
    }
