"""The store of a study: shared parts, lines, and files that are not a store."""

import json
from itertools import pairwise

import pytest

from lab import store
from lab.errors import UserError
from lab.store import read_store, store_text, stored, write_store

MACHINE = {"hardware": {"cpu": "X"}, "threads": 1}


def record(method, seed, loss, **environment):
    ran = {"commit": "abc", "date": "2000-01-02", "command": "scripts/study.sh tiny", **environment}
    return {
        "study": "tiny",
        "cell": {"method": method, "seed": seed},
        "fingerprint": "1",
        "data": None,
        "settings": {"task": {"_name": "copy"}},
        "training": {"curves": {}},
        "found": {"loss": loss},
        "environment": {**ran, **MACHINE},
    }


RECORDS = [record("b", 1, 0.1 + 0.2), record("a", 10, 1e-300), record("a", 2, 3)]


def test_records_come_back_as_they_were_sorted_by_cell(tmp_path):
    write_store(tmp_path / "records.jsonl", RECORDS)
    assert read_store(tmp_path / "records.jsonl") == [RECORDS[2], RECORDS[1], RECORDS[0]]
    assert [str(place) for place in stored(tmp_path)] == ["a/seed2.json", "a/seed10.json", "b/seed1.json"]
    assert stored(tmp_path / "nothing") == {} and read_store(tmp_path / "nothing") == []


def test_a_store_is_on_the_disk_before_it_replaces_another(tmp_path, monkeypatch):
    path, flushed = tmp_path / "records.jsonl", []
    monkeypatch.setattr(
        store, "flush_to_disk", lambda partial: flushed.append((partial.read_text(), path.exists()))
    )
    write_store(path, RECORDS)
    assert flushed == [(store_text(RECORDS), False)] and path.read_text() == store_text(RECORDS)


def test_settings_and_machines_are_said_once_and_a_new_record_changes_one_line():
    before = store_text(RECORDS).splitlines()
    assert len(before) == 3 + len(RECORDS)  # settings, no data, the machine
    assert all("hardware" not in line and "_name" not in line for line in before[3:])
    new = record("b", 1, 5.0, commit="def", measured_at="fed", date="2000-01-03")
    after = store_text([new, *RECORDS[1:]]).splitlines()
    assert sum(old != new for old, new in zip(before, after, strict=True)) == 1


@pytest.mark.parametrize(("points", "kept"), [(0, 0), (1, 1), (100, 100), (101, 51), (801, 89)])
def test_a_long_curve_is_thinned_to_equal_steps_once(tmp_path, points, kept):
    curve = [[25 * number, 1.0 / number] for number in range(1, points + 1)]
    training = {"updates": 3, "curves": {"train": curve, "valid": curve}}
    write_store(tmp_path / "records.jsonl", [RECORDS[0] | {"training": training}])
    [found] = read_store(tmp_path / "records.jsonl")
    thinned = found["training"]["curves"]["train"]
    assert found["training"]["curves"]["valid"] == curve  # by which tuning chooses
    assert len(thinned) == kept and thinned[-1:] == curve[-1:] and found["training"]["updates"] == 3
    assert len({b[0] - a[0] for a, b in pairwise(thinned)}) <= 1
    assert store_text([found]) == (tmp_path / "records.jsonl").read_text(encoding="utf-8")


def test_any_text_of_a_record_comes_back(tmp_path):
    flags = ["--user-text", "a\u2028b\u0085c\x1cd"]
    write_store(tmp_path / "records.jsonl", [RECORDS[0] | {"flags": flags}])
    assert read_store(tmp_path / "records.jsonl")[0]["flags"] == flags


def test_what_is_no_store_is_named_with_its_line(tmp_path):
    path = tmp_path / "records.jsonl"
    lines = store_text(RECORDS).splitlines()
    last = json.loads(lines[-1])
    without_cell = {key: value for key, value in last.items() if key != "cell"}
    edited = ({**last, "cell": cell} for cell in ("x", {"seed": 1, "tuning": "x"}))
    for line in ("{", "[]", "{}", *map(json.dumps, ({**last, "settings": "gone"}, without_cell, *edited))):
        path.write_text("\n".join([*lines[:-1], line]), encoding="utf-8")
        with pytest.raises(UserError, match=r"records.jsonl: line 6 is not a record; .* or remove the line"):
            read_store(path)
    path.write_text("\n".join([*lines[:2], "<<<<<<< HEAD", *lines[2:]]), encoding="utf-8")
    with pytest.raises(UserError, match=r"line 3 begins a conflict of a merge; keep the lines of both sides"):
        read_store(path)
    path.write_bytes(b"\xff\n")
    with pytest.raises(UserError, match=r"records.jsonl is not text; restore the file"):
        read_store(path)
    path.write_text("\n".join([*lines, lines[-1]]), encoding="utf-8")
    with pytest.raises(UserError, match=r"has two records of b/seed1.json"):
        stored(tmp_path)
