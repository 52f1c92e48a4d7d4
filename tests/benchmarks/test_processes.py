"""Measurements in their own processes: whatever ends one becomes a record."""

import subprocess
import textwrap

import pytest

from benchmarks import lm_cost, processes
from benchmarks.models import SMALL
from benchmarks.processes import WORKER, run_case


@pytest.fixture(autouse=True)
def processes_not_forks(monkeypatch):
    """Whatever tests of commands have left in its place."""
    monkeypatch.setattr(processes, "subprocess", subprocess)


@pytest.fixture
def worker(tmp_path, monkeypatch):
    """Makes a worker module of a few lines, with `case` and `answer` at hand."""

    def make(body: str) -> str:
        head = """
            import json, os, signal, sys, time
            case = json.load(open(sys.argv[1]))
            def answer(record):
                json.dump(record, open(sys.argv[2], "w"))
        """
        text = textwrap.dedent(head) + textwrap.dedent(body)
        (tmp_path / "fake_worker.py").write_text(text, encoding="utf-8")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        return "fake_worker"

    return make


def test_answer_comes_back(worker):
    module = worker("answer({'status': 'ok', 'double': 2 * case['n']})")
    assert run_case(module, {"n": 21}, 60) == {"status": "ok", "double": 42}


def test_failure_gives_the_last_line_of_stderr(worker):
    record = run_case(worker("raise ValueError('no such thing')"), {}, 60)
    assert record == {"status": "failed", "message": "ValueError: no such thing"}


def test_silent_failure_gives_the_exit_status(worker):
    assert run_case(worker("sys.exit(3)"), {}, 60) == {
        "status": "failed",
        "message": "exit status 3",
    }


def test_no_answer_is_a_failure(worker):
    assert run_case(worker("pass"), {}, 60)["status"] == "failed"


def test_time_limit_is_a_record(worker):
    assert run_case(worker("time.sleep(60)"), {}, 0.5)["status"] == "time limit"


def test_end_by_the_system_is_out_of_memory(worker):
    module = worker("os.kill(os.getpid(), signal.SIGKILL)")
    assert run_case(module, {}, 60)["status"] == "out of memory"


@pytest.mark.slow
def test_memory_limit_is_a_record():
    case = {
        "benchmark": lm_cost.__file__,
        "kind": "training",
        "architecture": "transformer_lm",
        "length": 1024,
        "tokens": 16384,
        "device": "cpu",
        "size": SMALL.as_dict(),
        "steps": 1,
        "threads": 1,
        "enough_s": 10,
        "memory_limit": 2**30,
    }
    assert run_case(WORKER, case, 120) == {"status": "out of memory"}
