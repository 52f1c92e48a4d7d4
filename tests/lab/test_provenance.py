"""The record of where a measurement ran, results files, small text helpers."""

import json
import os
import sys

import pytest

from lab.commands import costs
from lab.commands.costs import BY_VALUE, renewal
from lab.commands.make_results import outdated, say_what_is_stale
from lab.errors import UserError
from lab.files import MEASURED, ROOT, read_json, shown_path, write_json
from lab.provenance import (
    changed,
    environment,
    measured_methods,
    measured_sources,
    portable_command,
    stale,
    unused_tasks,
)
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


@pytest.mark.parametrize("folder", ["", "benchmarks"])
def test_a_recorded_benchmark_has_the_same_name_from_wherever_it_was_started(folder, monkeypatch):
    """Else its sources would not be known, and its figures never be stale."""
    monkeypatch.chdir(ROOT / folder)
    script = os.path.relpath(ROOT / "benchmarks" / "lm_cost.py")
    for first in (script, f"./{script}", str(ROOT / "benchmarks" / "lm_cost.py")):
        assert portable_command([first, "--quick"]) == "benchmarks/lm_cost.py --quick"


def write(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def test_the_sources_of_a_benchmark_are_those_that_it_runs(tmp_path):
    """Without comments and docstrings, the driver, code of the other device, and other mechanisms."""
    files = {
        "benchmarks/lm_cost.py": "from benchmarks.models import Size\nfrom benchmarks.run import drive\n",
        "benchmarks/models.py": "import user_dir\n",
        "benchmarks/operator_cost.py": "from benchmarks import run\n",
        "benchmarks/run.py": "from benchmarks.models import Size\n",
        "causal_linear_attention/csrc/cpu/b.cpp": "int a;  // a number\n/* two\nlines */\n",
        "causal_linear_attention/csrc/cuda/c.cu": "",
        "user_dir/modules/norms.py": '"""Norms."""\n\nx = 1  # one\n',
        "user_dir/checks/options.py": "",
        "lab/c.py": "",
    }
    write(tmp_path, files)
    operator = [name for name in files if name.startswith("causal")]
    models = ["benchmarks/lm_cost.py", "benchmarks/models.py", *operator, "user_dir/modules/norms.py"]
    before = measured_sources("benchmarks/lm_cost.py --device cpu", tmp_path)
    assert [*before] == models
    found = measured_sources("benchmarks/operator_cost.py", tmp_path)
    assert [*found] == ["benchmarks/operator_cost.py", *operator]
    (tmp_path / models[-1]).write_text("x = 1\n# said elsewhere\n")
    (tmp_path / operator[0]).write_text("// A number:\nint a;\n")
    assert measured_sources("benchmarks/lm_cost.py", tmp_path) == before
    (tmp_path / models[-1]).write_text("x = 2\n")
    now = measured_sources("benchmarks/lm_cost.py", tmp_path)
    assert changed(before, now, "cpu") == [models[-1]]
    assert changed(before, {**before, "user_dir/models/compiled.py": "0"}, "cpu") == []  # of --compile
    others = {**before, operator[1]: "0", "user_dir/attention/lln.py": "0", "user_dir/attention/tnn.py": "0"}
    assert changed(before, others, "cpu", ["lln_diag_lm", "transformer_lm"]) == ["user_dir/attention/lln.py"]
    (tmp_path / "benchmarks/models.py").write_text('import user_dir\nNAMES = {"reformer-4": "reformer"}\n')
    command = "benchmarks/lm_cost.py --device cpu"
    assert measured_methods(command, ["tnn_lm", "roberta_lln"], tmp_path) == ["tnn_lm", "roberta_lln"]
    assert measured_methods(command, ["reformer-4"], tmp_path) == {"reformer"}
    assert changed(before, {**before, **dict.fromkeys(operator, "0")}, "nvcc") == operator[1:]
    assert changed(before, others, "cuda", ["of_someone"]) == sorted({*others} - {*before} | {operator[1]})


def test_a_task_counts_where_a_benchmark_imports_it(tmp_path):
    files = {
        "benchmarks/image_cost.py": "from user_dir.tasks.pixels import PixelTask\n",
        "user_dir/tasks/__init__.py": "from .copy import CopyTask\nfrom .pixels import PixelTask\n",
        "user_dir/tasks/copy.py": "",
        "user_dir/tasks/image_task.py": "",
        "user_dir/tasks/pixels.py": "from .image_task import ImageTask\n",
    }
    write(tmp_path, files)
    unused = unused_tasks([*files, "user_dir/tasks/removed.py"], "benchmarks/image_cost.py", tmp_path)
    assert unused == {f"user_dir/tasks/{name}.py" for name in ("__init__", "copy", "removed")}
    (tmp_path / "benchmarks/image_cost.py").write_text("from user_dir.tasks import PixelTask\n")
    assert unused_tasks(files, "benchmarks/image_cost.py", tmp_path) == set()


def test_a_cost_is_stale_where_a_task_that_its_benchmark_imports_has_changed():
    now = environment("cpu") | {"command": "benchmarks/image_cost.py", "commit": "abc"}
    code = measured_sources(now["command"])

    def found(changed):
        return stale({"sessions": [{**now, "code": {**code, f"user_dir/tasks/{changed}.py": "0"}}]})

    assert found("recall") == "" and "sources in user_dir/tasks have changed" in found("pixels")


def test_costs_of_other_sources_are_listed_and_their_pages_say_so(tmp_path):
    now = environment("cpu") | {"command": "benchmarks/lm_cost.py", "commit": "abc"}
    now["code"] = measured_sources(now["command"])
    other = {**now, "code": {**now["code"], "benchmarks/lm_cost.py": "0"}}
    for name, content in {
        "before": {"sessions": [now, {**now, "code": "0"}]},
        "no_cost": {"environment": {**now, "code": "0", "command": "scripts/lab.sh evaluate"}},
        "now": {"sessions": [now]},
        "of_records": {"records": [{"environment": other}]},
    }.items():
        write_json(tmp_path / f"{name}.json", content)
        (tmp_path / f"{name}.md").write_text("mark\n\ntable\n")
    assert [path.stem for path in outdated(tmp_path)] == ["before", "of_records"]
    pages = [tmp_path / "before.md", tmp_path / "of_records.md"]
    assert say_what_is_stale(tmp_path) == pages and say_what_is_stale(tmp_path) == []
    line = "Stale: measured at commit abc; since then sources in benchmarks have changed."
    assert pages[1].read_text() == f"mark\n\n{line}\n\ntable\n"
    write_json(tmp_path / "of_records.json", {"records": [{"environment": now}]})
    assert say_what_is_stale(tmp_path) == pages[1:] and pages[1].read_text() == "mark\n\ntable\n"


def test_costs_are_renewed_from_the_start_once(tmp_path):
    path, decay, operator = (tmp_path / f"{x}.json" for x in ("lm_cost_cpu", "decay", "operator_cost"))
    now = environment("cpu") | {"command": "benchmarks/lm_cost.py"}
    now["code"] = measured_sources(now["command"])
    record = {"benchmark": "lm_cost", "settings": {"architectures": ["lln_lm", "tnn_lm"], "time_limit": 60}}
    first = ["benchmarks/lm_cost.py", "--device", "cpu", "--architectures", "lln_lm,tnn_lm"]
    first += ["--time-limit", "60"]
    script, out = "benchmarks/operator_cost.py", ["--device", "cpu", "--out", str(tmp_path)]
    for session, restart in (({**now, "code": {}}, ["--restart"]), (now, [])):
        write_json(path, {**record, "sessions": [session]})
        assert renewal(path) == [*first, *restart, "--out", str(path)]
        for once in (operator, decay):
            write_json(once, {"environment": session})
        assert renewal(operator) == ([script, *out] if restart else [])
        assert renewal(decay)[:4] == ([script, "--decay", *out[:2]] if restart else [])


def test_the_operator_is_not_measured_without_the_library_it_is_compared_with(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(costs, "MEASURED", tmp_path)
    monkeypatch.setattr(costs, "BY_VALUE", (costs.OPERATOR,))
    old = {**environment("cpu"), "command": "benchmarks/operator_cost.py", "code": {}}
    write_json(tmp_path / f"{costs.OPERATOR}.json", {"environment": old})
    costs.main(costs.parse(["--dry-run"]))
    left_out = "left out: operator_cpu/operator_cost, which needs --fast-transformers and"
    assert capsys.readouterr().out.startswith(left_out)
    builds = [
        "--fast-transformers",
        str(tmp_path),
        "--fast-transformers-tuned",
        str(tmp_path / "operator_cpu"),
    ]
    costs.main(costs.parse(["--dry-run", *builds]))
    assert capsys.readouterr().out.endswith(f" {' '.join(builds)}\n")
    with pytest.raises(UserError, match="absent is not a folder; name one with a build of fast-transformers"):
        costs.main(costs.parse(["--dry-run", "--fast-transformers", str(tmp_path / "absent")]))


def test_every_record_of_costs_has_a_command(monkeypatch):
    monkeypatch.setattr(costs, "stale", lambda record: ["sources"])
    for name in BY_VALUE:
        script, *_ = renewal(MEASURED / f"{name}.json")
        assert (ROOT / script).is_file()


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


def test_a_link_in_the_repository_keeps_its_name(tmp_path, monkeypatch):
    """Else records of studies whose `data` is a link to another disk would have other settings."""
    monkeypatch.setattr("lab.files.ROOT", tmp_path / "clone")
    (tmp_path / "clone").mkdir()
    (tmp_path / "disk" / "set").mkdir(parents=True)
    (tmp_path / "clone" / "data").symlink_to(tmp_path / "disk")
    (tmp_path / "other").symlink_to(tmp_path / "clone")
    assert shown_path(tmp_path / "clone" / "data" / "set") == "data/set"
    assert shown_path(tmp_path / "other" / "runs") == "runs"
    assert shown_path(tmp_path / "disk" / "set") == str(tmp_path / "disk" / "set")


def test_spread():
    assert spread([3.0, 1.0, 2.0]) == "2.00 (1.00 to 3.00)"
    assert spread([1.001, 1.002]) == "1.00"


def test_markdown_table():
    lines = markdown_table(["a", "b"], [["x", "1"], ["y", "2"]]).splitlines()
    assert lines == ["| a | b |", "| --- | ---: |", "| x | 1 |", "| y | 2 |"]
