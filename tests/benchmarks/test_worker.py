"""The figures of one case, on tiny models; any end of its process becomes a record."""

import subprocess
import textwrap

import pytest
import torch

from benchmarks import lm_cost, worker
from benchmarks.lm_cost import measure_decoding
from benchmarks.measuring import PeakMemory, ran_out_of_memory
from benchmarks.models import SMALL, TINY, LanguageModel, copy_state, fill_state
from benchmarks.worker import measure_steps, run_case
from lab.methods import LANGUAGE_MODELS, MAIN_LANGUAGE_MODELS
from tests.helpers import forked
from tests.helpers.cases import mainly

CASE = {"device": "cpu", "size": TINY.as_dict(), "enough_s": 60}


def test_steps_stop_when_enough_time_has_passed():
    case = {**CASE, "architecture": "transformer_lm", "length": 32, "tokens": 64, "steps": 9}
    assert len(measure_steps({**case, "enough_s": 0})["step_seconds"]) == 1


@pytest.mark.parametrize("name", mainly(MAIN_LANGUAGE_MODELS, LANGUAGE_MODELS))
def test_decoding_is_timed_at_every_position(name):
    case = {**CASE, "architecture": name, "positions": [3, 70], "visit_steps": 2, "visits": 3}
    result = measure_decoding(case)
    visits = result["visit_seconds"]
    assert {position: len(seconds) for position, seconds in visits.items()} == {"3": 3, "70": 3}
    assert all(result["token_seconds"][position] >= min(seconds) for position, seconds in visits.items())


@pytest.mark.parametrize(
    "name", mainly(MAIN_LANGUAGE_MODELS, [n for n in LANGUAGE_MODELS if n != "transformer_lm"])
)
def test_filled_state_is_that_of_the_whole_prompt(name):
    lm = LanguageModel(name, TINY, 80, 80, "cpu")
    lm.model.eval()
    tokens, state = lm.tokens(1, 80), {}
    with torch.no_grad():
        fill_state(lm.model, tokens, state, 0, 10)
        fill_state(lm.model, tokens, state, 10, 70)
        out, _ = lm.model.decoder(tokens[:, :71], incremental_state=state)
        full, _ = lm.model.decoder(tokens[:, :71])
    torch.testing.assert_close(out[:, -1], full[:, -1], rtol=1e-4, atol=1e-5)


def test_filled_cache_of_fairseqs_own_model_has_the_length_asked_for():
    lm = LanguageModel("transformer_lm", TINY, 80, 80, "cpu")
    lm.model.eval()
    state = {}
    fill_state(lm.model, lm.tokens(1, 80), state, 0, 70)
    attention = lm.model.decoder.layers[0].self_attn
    assert attention._get_input_buffer(state)["prev_key"].shape[2] == 70
    lm.model.decoder(lm.tokens(1, 71), incremental_state=state)
    assert attention._get_input_buffer(state)["prev_key"].shape[2] == 71


def test_copied_state_is_independent():
    state = {"a": {"x": torch.zeros(2), "n": 3, "none": None}}
    copy = copy_state(state)
    copy["a"]["x"] += 1
    copy["a"]["n"] = 4
    assert state["a"]["x"].sum() == 0 and state["a"]["n"] == 3


def test_peak_memory_sees_what_was_freed_again():
    meter = PeakMemory("cpu")
    block = torch.ones(64 * 2**20 // 4)
    del block
    assert 48 * 2**20 < meter.bytes() < 256 * 2**20


def test_memory_freed_before_counts_when_it_is_used_again():
    def blocks():
        return [torch.ones(2**19 // 4) for _ in range(128)]  # too small to be returned one by one

    first, last = blocks(), torch.ones(2**19 // 4)  # without the last the system would get all of it back
    del first
    meter = PeakMemory("cpu")
    again = blocks()
    assert meter.bytes() > 48 * 2**20
    del again, last


def test_only_failed_allocations_are_out_of_memory():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60, dtype=torch.uint8)
    assert ran_out_of_memory(caught.value) and ran_out_of_memory(MemoryError())
    assert not ran_out_of_memory(RuntimeError("shape mismatch"))
    assert not ran_out_of_memory(ValueError("out of memory"))


@pytest.fixture(autouse=True)
def processes_not_forks(monkeypatch):
    """Real processes, although tests of commands replace them by forks."""
    monkeypatch.setattr(worker, "subprocess", subprocess)


@pytest.fixture
def answer_of(tmp_path, monkeypatch):
    """The answer of a worker of a few lines, with `case` and `answer` at hand."""

    def run(body: str, time_limit: float = 60) -> dict:
        head = """
            import json, os, signal, sys, time
            case = json.load(open(sys.argv[1]))
            def answer(record):
                json.dump(record, open(sys.argv[2], "w"))
        """
        text = textwrap.dedent(head) + textwrap.dedent(body)
        (tmp_path / "fake_worker.py").write_text(text, encoding="utf-8")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        monkeypatch.setattr(worker, "WORKER", "fake_worker")
        return run_case({"n": 21}, time_limit)

    return run


@pytest.mark.parametrize(
    ("lines", "record"),
    [
        ("answer({'status': 'ok', 'double': 2 * case['n']})", {"status": "ok", "double": 42}),
        ("raise ValueError('none')", {"status": "failed", "message": "ValueError: none"}),
        ("sys.exit(3)", {"status": "failed", "message": "exit status 3"}),
        ("pass", {"status": "failed", "message": "exit status 0"}),
        ("os.kill(os.getpid(), 9)", {"status": "out of memory", "message": "ended by the system"}),
    ],
)
def test_whatever_ends_a_process_becomes_a_record(lines, record, answer_of):
    assert answer_of(lines) == record


def test_the_folder_of_the_command_is_not_measured(answer_of, tmp_path, monkeypatch):
    """It may be another checkout of the project."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "fake_worker.py").write_text("raise SystemExit('of another checkout')")
    monkeypatch.chdir(tmp_path / "other")
    assert answer_of("answer({'status': 'ok'})") == {"status": "ok"}


def test_time_limit_is_a_record(answer_of, tmp_path, monkeypatch):
    assert answer_of("time.sleep(60)", 0.5)["status"] == "time limit"
    for patch in forked.patches():
        monkeypatch.setattr(*patch)
    benchmark = tmp_path / "benchmark.py"
    benchmark.write_text("import time\nMEASURES = {'sleep': lambda case: time.sleep(60)}\n", encoding="utf-8")
    monkeypatch.setattr(worker, "WORKER", "benchmarks.worker")
    case = {"benchmark": str(benchmark), "kind": "sleep"}
    assert run_case(case, 0.5)["status"] == "time limit"


def test_memory_limit_is_a_record(monkeypatch):
    """The weights of four sequences take as much as the limit; one token is within it."""
    for patch in forked.patches():
        monkeypatch.setattr(*patch)
    case = {
        "benchmark": lm_cost.__file__,
        "kind": "training",
        "architecture": "transformer_lm",
        "device": "cpu",
        "size": SMALL.as_dict(),
        "steps": 1,
        "threads": 1,
        "enough_s": 10,
        "memory_limit": 2**30,
    }
    assert run_case({**case, "length": 1, "tokens": 1}, 120)["status"] == "ok"
    assert run_case({**case, "length": 4096, "tokens": 4 * 4096}, 120) == {"status": "out of memory"}
