"""What identifies data that have no manifest."""

import os

from pipeline import files
from pipeline.data.prepared import identify, same_data
from pipeline.files import sha256_of


def test_files_without_a_manifest_are_read_again_only_when_they_change(tmp_path, monkeypatch):
    read = []
    monkeypatch.setattr(files, "sha256_of", lambda path: read.append(path.name) or sha256_of(path))
    for name in ("train.idx", "valid.idx"):
        (tmp_path / name).write_text(name)
    first = identify(tmp_path)
    assert identify(tmp_path) == first and read == ["train.idx", "valid.idx"]
    (tmp_path / "valid.idx").write_text("another")
    os.utime(tmp_path / "valid.idx", ns=(1, 1))
    second = identify(tmp_path)
    assert read[2:] == ["valid.idx"]
    assert first["files"]["train.idx"] == second["files"]["train.idx"]
    assert not same_data(first, second)
