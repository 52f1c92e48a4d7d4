"""The shared driver of the cost benchmarks: cases are saved, resumed and not mixed."""

import json
from dataclasses import replace

import pytest

from benchmarks import lm_cost, loss_cost, run
from lab.errors import UserError
from lab.files import MEASURED
from lab.provenance import check_same_machine


def test_finished_and_hopeless_cases_are_not_run_again():
    case = {"kind": "training", "architecture": "a", "length": 8, "round": 1}
    results = {"records": [{**case, "round": 0, "status": "ok"}]}
    limits = {"time limit": 150.0, "out of memory": 0}

    def is_done(turn):
        return run.is_done(results, {**case, "round": turn}, limits)

    assert not is_done(1) and is_done(0)
    results["records"][0]["status"] = "out of memory"
    assert is_done(1) and is_done(0)
    results["records"][0]["status"] = "failed"
    assert not is_done(1) and not is_done(0)


VISITS = {"10": [1.0], "100": [1.0]}


def answer(question):
    """The answer of a worker."""
    if question["kind"] == "decoding":
        return {"status": "ok", "token_seconds": {"10": 1.0, "100": 1.0}, "visit_seconds": VISITS}
    return {"status": "ok", "step_seconds": [1.0], "peak_bytes": 5}


def test_what_a_lower_limit_ended_is_measured_again(tmp_path, monkeypatch):
    words = ["--quick", "--device", "cpu", "--architectures", "transnormer_t1", "--lengths", "64"]
    words += ["--out", str(tmp_path / "cost.json")]
    benchmark = replace(lm_cost.BENCHMARK, plot=None)
    for limits, status, measured in [
        (["--time-limit", "5"], "time limit", 2),
        (["--time-limit", "5"], "ok", 0),
        (["--time-limit", "6", "--memory-limit-gib", "2"], "out of memory", 2),
        ([], "ok", 0),
        (["--memory-limit-gib", "3"], "ok", 2),
    ]:
        asked = []

        def measure(question, time_limit, status=status, asked=asked):
            asked.append(question)
            return answer(question) if status == "ok" else {"status": status}

        monkeypatch.setattr(run, "run_case", measure)
        assert benchmark.run(benchmark.parse([*words, *limits])) == 0
        assert len(asked) == measured


def test_another_architecture_joins_what_is_measured_and_other_settings_do_not(tmp_path):
    path = tmp_path / "r.json"
    kept = {"settings": {"tokens": 256, "architectures": ["a", "b"]}, "sessions": [], "records": ["kept"]}
    path.write_text(json.dumps(kept))
    asked = {"tokens": 256, "architectures": ["c", "b"]}
    results = run.start_or_resume("lm_cost", path, asked, False)
    assert results["records"] == ["kept"] and results["settings"]["architectures"] == ["a", "b", "c"]
    with pytest.raises(UserError, match="other settings"):
        run.start_or_resume("lm_cost", path, {**asked, "tokens": 1}, False)


@pytest.mark.parametrize("changed", [{}, {"threads": 999}, {"versions": {"torch": "1.0"}}])
def test_figures_of_another_machine_are_not_joined(changed, tmp_path, monkeypatch):
    """A complete record may be of any machine: `scripts/lab.sh costs` continues with the next one."""
    path = tmp_path / "r.json"
    words = ["--quick", "--device", "cpu", "--architectures", "transnormer_t1", "--out", str(path)]
    benchmark = replace(lm_cost.BENCHMARK, plot=None)
    monkeypatch.setattr(run, "run_case", lambda question, limit: answer(question))
    assert benchmark.run(benchmark.parse(words)) == 0
    results = json.loads(path.read_text())
    here = results["sessions"][0]
    other = (
        {**here, **changed} if changed else {**here, "hardware": {**here["hardware"], "cpu": "An old one"}}
    )
    results["sessions"] = [{**here, "commit": "another", "date": "2000-01-01"}, other]
    path.write_text(json.dumps(results))
    assert benchmark.run(benchmark.parse(words)) == 0
    results["records"].pop()
    text = json.dumps(results)
    path.write_text(text)
    with pytest.raises(
        UserError, match="was measured on .*, and this is .*; give another --out, or .*--restart"
    ):
        benchmark.run(benchmark.parse(words))
    assert path.read_text() == text
    assert benchmark.run(benchmark.parse([*words, "--restart"])) == 0
    with pytest.raises(UserError, match="was measured on an unknown processor"):
        check_same_machine(path, [{**here, "hardware": None}], "cpu")
    path.write_text(json.dumps({"records": [{"environment": other}]}))
    with pytest.raises(UserError, match="was measured on"):
        loss_cost.measure([], "cpu", path)


def test_committed_figures_are_of_one_machine_each(monkeypatch):
    """Sessions of several commits on the machine that measured them can be joined there."""
    for path in MEASURED.glob("*_cpu.json"):
        sessions = json.loads(path.read_text()).get("sessions")
        if sessions:
            monkeypatch.setattr("lab.provenance.environment", lambda device, s=sessions: s[0])
            check_same_machine(path, sessions, "cpu")


def test_committed_figures_are_of_committed_code(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "commit", lambda: "0123456789ab+changes")
    with pytest.raises(UserError, match="commit your changes, or give --uncommitted"):
        run.check_committed(MEASURED / "lm_cost_cpu.json", uncommitted=False)
    run.check_committed(MEASURED / "lm_cost_cpu.json", uncommitted=True)
    run.check_committed(tmp_path / "lm_cost_cpu.json", uncommitted=False)
    monkeypatch.setattr(run, "commit", lambda: "0123456789ab")
    run.check_committed(MEASURED / "lm_cost_cpu.json", uncommitted=False)


def test_run_keeps_what_is_measured_and_carries_on(tmp_path, monkeypatch, capsys):
    out = tmp_path / "cost.json"
    words = ["--quick", "--device", "cpu", "--architectures", "transnormer_t1", "--out", str(out)]
    arguments, measured = lm_cost.BENCHMARK.parse(words), []

    def measure(question, time_limit):
        assert time_limit == 150
        assert question["enough_s"] == 30 and question["memory_limit"] > 0
        assert (question["steps"], question["visit_steps"], question["tokens"]) == (1, 4, 256)
        if len(measured) == 2:
            raise KeyboardInterrupt
        measured.append(question)
        return answer(question)

    monkeypatch.setattr(run, "run_case", measure)
    with pytest.raises(KeyboardInterrupt):
        lm_cost.BENCHMARK.run(arguments)
    assert len(json.loads(out.read_text())["records"]) == 2
    failure = {"status": "failed", "message": "ValueError: broken"}
    monkeypatch.setattr(run, "run_case", lambda *_: failure)
    assert lm_cost.BENCHMARK.run(arguments) == 1
    text = capsys.readouterr()
    assert "3 cases on cpu, 2 done before" in text.out and "broken" in text.err
    results = json.loads(out.read_text())
    assert [r["session"] for r in results["records"]] == [0, 0, 1]


def test_a_gpu_that_is_not_there_is_said_in_a_sentence(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert run.choose_device("auto") == "cpu"
    with pytest.raises(UserError, match="no GPU"):
        run.choose_device("cuda")
