"""The record of where a measurement ran, results files, small text helpers."""

import json
import sys

import pytest

from lab.commands.costs import renewal
from lab.commands.make_results import outdated
from lab.errors import UserError
from lab.files import ROOT, read_json, shown_path, write_json
from lab.provenance import environment, measured_code, portable_command
from lab.publish.tables import markdown_table, spread


def test_environment_says_what_is_needed_to_measure_again():
    record = environment("cpu")
    assert {"commit", "date", "command", "device", "hardware", "threads", "versions"} <= set(record)
    assert record["hardware"]["cores"] >= 1 and record["versions"]["torch"]
    assert record["versions"]["python"] == sys.version.split()[0]
    json.dumps(record)


def test_recorded_command_holds_no_path_of_this_machine(tmp_path):
    inside = str(ROOT / "results" / "a b.json")
    command = portable_command(["run.py", inside, f"--from={tmp_path}", str(tmp_path), "--n", "3"])
    folder = f"FOLDER/{tmp_path.name}"
    assert command == f"run.py 'results/a b.json' --from={folder} {folder} --n 3"


def test_costs_of_other_sources_are_listed(tmp_path):
    root, command = tmp_path / "clone", "benchmarks/lm_cost.py --device cpu"
    for name in ("user_dir/a.py", "causal_linear_attention/b.cpp", "benchmarks/lm_cost.py", "lab/c.py"):
        (root / name).parent.mkdir(parents=True)
        (root / name).write_text(name)
    before = measured_code(command, root)
    (root / "lab" / "c.py").write_text("another")
    (root / "user_dir" / "notes.md").write_text("no source")
    assert measured_code(command, root) == before
    for name in ("user_dir/a.py", "causal_linear_attention/b.cpp", "benchmarks/lm_cost.py"):
        (root / name).write_text("another")
        assert measured_code(command, root) != before, name
        (root / name).write_text(name)
    now = environment("cpu") | {"command": command, "code": measured_code(command)}
    old = {key: value for key, value in now.items() if key != "code"}
    for name, content in {
        "now": {"sessions": [now]},
        "before": {"sessions": [now, old]},
        "of_records": {"records": [{"environment": {**now, "code": "0"}}]},
        "no_cost": {"environment": {**old, "command": "scripts/lab.sh evaluate"}},
    }.items():
        write_json(tmp_path / "measured" / f"{name}.json", content)
    assert [path.stem for path in outdated(tmp_path / "measured")] == ["before", "of_records"]


def test_costs_are_renewed_from_the_start_once(tmp_path):
    path = tmp_path / "lm_cost_cpu.json"
    now = environment("cpu") | {"command": "benchmarks/lm_cost.py"}
    now["code"] = measured_code(now["command"])
    record = {"benchmark": "lm_cost", "settings": {"architectures": ["lln_lm", "tnn_lm"], "time_limit": 60}}
    first = ["benchmarks/lm_cost.py", "--device", "cpu", "--architectures", "lln_lm,tnn_lm"]
    first += ["--time-limit", "60"]
    for sessions, restart in (([{**now, "code": "0"}], ["--restart"]), ([now], [])):
        write_json(path, {**record, "sessions": sessions})
        assert renewal(path) == [*first, *restart, "--out", str(path)]


def test_json_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "new folder" / "results.json"
    write_json(path, {"a": 1})
    with pytest.raises(TypeError):
        write_json(path, {"a": object()})
    assert read_json(path) == {"a": 1}
    assert [p.name for p in path.parent.iterdir()] == ["results.json"]


def test_an_interrupted_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "results.json"
    write_json(path, {"a": 1})

    def fail(*_):
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OSError, match="No space"):
        write_json(path, {"a": 2})
    assert read_json(path) == {"a": 1} and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("content", ["", "{", "\x80"])
def test_a_damaged_file_is_a_users_error(tmp_path, content):
    path = tmp_path / "results.json"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(UserError, match="cannot be read as JSON"):
        read_json(path)


def test_shown_path_is_relative_to_the_repository(tmp_path):
    assert shown_path(ROOT / "results") == "results"
    assert shown_path(tmp_path) == str(tmp_path.resolve())


def test_spread():
    assert spread([3.0, 1.0, 2.0]) == "2.00 (1.00 to 3.00)"
    assert spread([1.001, 1.002]) == "1.00"


def test_markdown_table():
    lines = markdown_table(["a", "b"], [["x", "1"], ["y", "2"]]).splitlines()
    assert lines == ["| a | b |", "| --- | ---: |", "| x | 1 |", "| y | 2 |"]
