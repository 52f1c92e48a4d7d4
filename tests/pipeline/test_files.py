"""Results are made once, and never mixed with those of other settings."""

import errno

import pytest

from pipeline.errors import UserError, explain
from pipeline.files import RUN_MARK, begin, fingerprint, is_run, once, read_json, write_json
from pipeline.outputs import LOCK, run_lock


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
    with pytest.raises(UserError, match="holds what other.sh has not written"):
        begin(folder, "other.sh", "one")
    assert (folder / "checkpoint").exists()


def test_a_run_killed_while_it_marked_its_folder_starts_again(tmp_path):
    (tmp_path / f"{RUN_MARK}.part").write_text('{"comm')
    begin(tmp_path, "train.sh", "one")
    assert is_run(tmp_path, "train.sh") and len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("name", ["settings.json", "fingerprint", "result.json"])
def test_the_folder_of_somebody_else_is_no_run_of_ours(tmp_path, name):
    (tmp_path / name).write_text("{}")
    with pytest.raises(UserError, match="holds what quickstart.sh has not written"):
        begin(tmp_path, "quickstart.sh", "one")
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_what_a_full_disk_has_no_room_for_is_named(tmp_path):
    (tmp_path / "a.json.part").symlink_to("/dev/full")
    with pytest.raises(OSError) as error:
        write_json(tmp_path / "a.json", {})
    assert explain(error.value) == f"the disk is full while writing {tmp_path / 'a.json'}; free some space"
    assert not list(tmp_path.iterdir())


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
