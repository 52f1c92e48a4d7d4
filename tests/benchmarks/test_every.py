"""Every benchmark: its committed tables, its plot, its command line, a tiny run. No times are judged."""

import importlib
import json
import runpy
import subprocess
import sys
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

import build_machine
from benchmarks import attention_cost, lra_speed, run, speech_cost
from benchmarks.models import TINY, Size
from lab.commands.make_results import without_stale
from lab.errors import UserError
from lab.files import BENCHMARKS, MEASURED, ROOT, marked, read_json
from lab.methods import ATTENTIONS, MAIN_LANGUAGE_MODELS
from lab.publish.html import Table, markdown_parts
from tests.helpers.cases import firstly, mainly

QUICK = {
    "attention_cost": ("elu", 2),
    "image_cost": ("elu", 2),
    "lm_cost": ("transnormer_t1", 3),
    "lra_cost": ("lln_diag", 5),
    "lra_speed": ("elu", 4),
    "roberta_cost": ("roberta_linear", 2),
    "speech_cost": ("elu", 1),
}
"""An architecture, and how many cases it has, of each benchmark that runs case by case."""
RECORDS = {
    **{name: f"{name}_cpu" for name in (*QUICK, "loss_cost", "packed_cost")},
    "cuda_resources": "cuda/cuda_resources",
    "model_parts_cost": "model_parts/model_parts_cost",
    "operator_cost": "operator_cpu/operator_cost",
}
"""The results of each benchmark, without the suffix."""
NONSENSE = ("--architectures nonsense", "--nonsense", "--time-limit nonsense")
HELP = ".*see .* --help"
TIMED = {
    "attention_cost": (attention_cost.OPERATORS, attention_cost.TINY_HEADS, 48, -1),
    "lm_cost": ([*MAIN_LANGUAGE_MODELS, "tnn_lm"], TINY, 32, TINY.vocabulary * TINY.width),
    "lra_speed": (ATTENTIONS, replace(TINY, width=32), 130, TINY.vocabulary * 32),
    "roberta_cost": (
        ["roberta_softmax", "roberta_lln_diag", "roberta_flash"],
        TINY,
        130,
        TINY.vocabulary * TINY.width,
    ),
    "speech_cost": (speech_cost.COMPARED, Size(layers=1, width=12, heads=2, vocabulary=5), 40, 12 * 40),
}
"""Architectures whose steps are timed, their size, the length, and a lower bound on their parameters."""


def module_of(name):
    return importlib.import_module(f"benchmarks.{name}")


@pytest.mark.parametrize(("name", "path"), RECORDS.items())
def test_committed_tables_are_those_of_the_record(name, path):
    record = MEASURED / f"{path}.json"
    page = marked(module_of(name).markdown(read_json(record)))
    assert page == without_stale(record.with_suffix(".md").read_text(encoding="utf-8"))


def cells_of(text):
    """The cells of a page's tables."""
    tables = [part for part in markdown_parts(text) if isinstance(part, Table)]
    return [cell for table in tables for row in table.rows for cell in row]


def is_empty(cell):
    """Whether it says that nothing was measured, perhaps before a paper's figure."""
    return cell.startswith(("–", "not measured"))


@pytest.mark.parametrize("name", mainly(("lm_cost", "speech_cost"), QUICK))
def test_plots_and_tables_do_without_what_was_not_measured(name, tmp_path):
    module, whole = module_of(name), read_json(MEASURED / f"{RECORDS[name]}.json")
    plot = module.BENCHMARK.plot
    for records in (whole["records"], []) if plot else ():
        plot({**whole, "records": records}, tmp_path / "cost.png")
        assert (tmp_path / "cost.png").read_bytes().startswith(b"\x89PNG")
    known, *others = (
        cells_of(module.markdown({**whole, "records": records}))
        for records in (whole["records"], whole["records"][:1], [])
    )
    for cells in others:
        assert sum(map(is_empty, cells)) > sum(map(is_empty, known))
    assert all(is_empty(cell) for cell in others[-1] if cell not in known)


@pytest.mark.parametrize(
    ("name", "words", "sentence"),
    [
        *((name, words, f"nonsense{HELP}") for name in QUICK for words in NONSENSE),
        ("image_cost", "--images svhn", f"--images names 'svhn'{HELP}"),
        ("lra_speed", "--lengths review", f"--lengths review needs --data{HELP}"),
        ("lra_speed", "--data somewhere", f"--lengths review needs --data{HELP}"),
        ("lra_speed", "--steps 0", f"'0' is not a whole number{HELP}"),
        ("loss_cost", "--text nowhere", "no text file nowhere"),
        ("model_parts_cost", "--baseline /", "/ is not a checkout of the project"),
    ],
)
def test_a_wrong_command_line_is_refused_in_a_sentence(name, words, sentence):
    module = module_of(name)
    parse = module.BENCHMARK.parse if name in QUICK else module.parse_arguments
    with pytest.raises(UserError, match=sentence):
        parse(words.split())


@pytest.mark.parametrize("name", RECORDS)
def test_without_out_results_go_to_runs(name, monkeypatch):
    """The committed ones are of another machine: they are neither resumed nor replaced."""

    class Reached(Exception):
        """Carries the path that the benchmark is about to write."""

    def stop(path, *rest, **options):
        raise Reached(path)

    module = module_of(name)
    monkeypatch.setattr(run if hasattr(module, "BENCHMARK") else module, "check_output", stop)
    monkeypatch.setattr(build_machine, "nvcc", lambda: "nvcc")
    data = ["DATA"] if name == "packed_cost" else []
    device = [] if name in ("model_parts_cost", "cuda_resources") else ["--device", "cpu"]
    monkeypatch.setattr("sys.argv", [name, *data, *device])
    with pytest.raises(Reached) as reached:
        module.main()
    assert reached.value.args == (BENCHMARKS / f"{RECORDS[name]}.json",)


@pytest.mark.parametrize("name", ["lm_cost", "roberta_cost"])
def test_cases_take_turns_over_all_lengths(name):
    benchmark, lengths = module_of(name).BENCHMARK, [512, 1024, 2048, 4096, 8192, 16384]
    settings = benchmark.settings(benchmark.parse(["--device", "cpu"]))
    cases = [case for case in benchmark.cases(settings) if case["kind"] == "training"]
    names = settings["architectures"]
    assert [case["architecture"] for case in cases] == 2 * len(lengths) * names
    assert [case["length"] for case in cases[:: len(names)]] == [*lengths, *reversed(lengths)]


@pytest.fixture
def measured_here(monkeypatch) -> None:
    """Cases are measured in the test's own process; separate processes have separate tests."""

    def run_case(case: dict[str, Any], time_limit: float) -> dict[str, Any]:
        measures = runpy.run_path(case["benchmark"])["MEASURES"]
        return {"status": "ok", **measures[case["kind"]](case)}

    monkeypatch.setattr(run, "run_case", run_case)


@pytest.mark.parametrize(
    ("name", "architecture", "cases"),
    mainly([("lm_cost", *QUICK["lm_cost"])], [(name, *plan) for name, plan in QUICK.items()]),
)
def test_quick_run_resumes(name, architecture, cases, tmp_path, measured_here, capsys):
    module, out = module_of(name), tmp_path / "a b" / "cost.json"
    words = ["--quick", "--device", "cpu", "--architectures", architecture, "--out", str(out)]
    for done in (0, cases):
        assert module.BENCHMARK.run(module.BENCHMARK.parse(words)) == 0
        assert f"{cases} cases on cpu, {done} done before" in capsys.readouterr().out
    assert [record["status"] for record in json.loads(out.read_text())["records"]] == ["ok"] * cases
    made = {f"cost{suffix}" for suffix in module.BENCHMARK.suffixes}
    assert {path.name for path in out.parent.iterdir()} == made


@pytest.mark.parametrize(
    ("name", "architecture"),
    [one for name, (known, *_) in TIMED.items() for one in firstly(2, [(name, x) for x in known])],
)
def test_steps_are_timed(name, architecture, monkeypatch):
    _, size, length, exceeded = TIMED[name]
    case = {"device": "cpu", "enough_s": 60, "steps": 2, "size": size.as_dict(), "reviews": None}
    case |= {"architecture": architecture, "length": length, "tokens": 2 * length}
    monkeypatch.setattr(lra_speed, "TextClassifier", cache(lra_speed.TextClassifier))  # one for both kinds
    for kind in ("inference", "training") if name == "lra_speed" else ("training",):
        found = module_of(name).MEASURES[kind](case)
        assert len(found["step_seconds"]) == 2 and min(found["step_seconds"]) > 0
        padded = name == "speech_cost"
        assert all(length <= n <= 2 * length if padded else n == 2 * length for n in found["step_tokens"])
        assert found["whole_peak_bytes"] > 0 and found["parameters"] > exceeded


def test_help_needs_nothing():
    command = [sys.executable, str(ROOT / "benchmarks" / "lm_cost.py"), "--help"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "--memory-limit-gib" in text and "to resume" in text
