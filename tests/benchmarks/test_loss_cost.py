"""The losses that loss_cost.py compares compute the same, and its report has the figures."""

import pytest
import torch
from fairseq.data import Dictionary
from fairseq.data.data_utils import load_indexed_dataset

from benchmarks import loss_cost
from benchmarks.loss_cost import markdown, measure_losses, prepare
from lab.errors import UserError
from tests.benchmarks.records import ENVIRONMENT


@pytest.fixture(scope="module")
def record():
    words = "--vocabulary 3000 --tokens 600 --width 8 --steps 2"
    (case,) = loss_cost.cases(loss_cost.parse_arguments(words.split()), "cpu")
    return {**case, "environment": ENVIRONMENT, "status": "ok", **measure_losses({**case, "device": "cpu"})}


def test_all_compute_the_same_loss(record):
    losses = [found["loss"] for name, found in record["found"].items() if name != "products"]
    assert len(losses) == 3 and losses == pytest.approx(losses[:1] * 3, rel=1e-6)
    assert all(len(found["seconds"]) == 2 for found in record["found"].values())


def test_the_plain_loss_needs_more_memory(record):
    """Logits, log-probabilities and gradients of all tokens, against one or two chunks of 512."""
    logits = 600 * 3000 * 4
    peaks = {name: found.get("peak_bytes") for name, found in record["found"].items()}
    assert peaks["plain"] > 1.9 * logits
    assert max(peaks["chunked"], peaks["fallback"]) < peaks["plain"]


def test_a_loss_that_runs_out_of_memory_leaves_the_usual_allocator_to_the_others(monkeypatch):
    calls, step = [], loss_cost.step

    def too_large(name, x, *others):
        if name == "fallback" and len(x) > 2:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        calls.append(name)
        return step(name, x, *others)

    monkeypatch.setattr(loss_cost, "step", too_large)
    for name in ("exact_frees", "usual_frees"):
        monkeypatch.setattr(loss_cost, name, lambda name=name: calls.append(name))
    words = "--vocabulary 30 --tokens 8 --width 8 --steps 1"
    (case,) = loss_cost.cases(loss_cost.parse_arguments(words.split()), "cpu")
    found = measure_losses({**case, "device": "cpu"})["found"]
    assert found["fallback"]["status"] == "out of memory" and found["plain"]["status"] == "ok"
    timed = calls[-calls[::-1].index("exact_frees") :]
    assert timed == ["usual_frees", "products", "plain", "chunked"]


def test_report(record):
    update = {
        "kind": "update",
        "environment": ENVIRONMENT,
        "config": "a.yaml",
        "text": "words",
        "vocabulary": 3000,
        "memory_limit": 2**33,
    }
    measured = {"seconds": [3.0], "losses": [9.5], "tokens": [4096], "whole_peak_bytes": 2**32}
    updates = [
        {**update, **measured, "criterion": "chunked_cross_entropy", "status": "ok"},
        {**update, "criterion": "cross_entropy", "status": "out of memory"},
    ]
    text = markdown({"records": [record, *updates]})
    assert "| `chunked_cross_entropy` | 4,096 | 3.0 | 9.500 | 4.00 |" in text
    assert "| `cross_entropy` | – | – | – | out of memory, limit 8.0 |" in text
    assert "the three matrix products alone" in text and "commit abc" in text


def test_errors_of_half_precision(record):
    x, weight = (torch.randn(n, 8).bfloat16().requires_grad_() for n in (30, 50))
    target = torch.arange(30)
    loss_cost.step("plain", x, weight, target)
    errors = loss_cost.gradient_errors(x, weight, target)
    assert all(1e-4 < error < 1e-2 for error in errors)
    found = {"chunked": {**record["found"]["chunked"], "gradient_errors": [0.0023, 0.0031]}}
    text = markdown({"records": [{**record, "found": {**record["found"], **found}}]})
    assert "features / weight" in text and "| 0.23 / 0.31 |" in text


def test_a_case_that_was_ended_and_other_settings(record, tmp_path):
    ended = {k: v for k, v in record.items() if k != "found"} | {"status": "time limit", "vocabulary": 9000}
    assert "| 3,000 | 9,000 |" in markdown({"records": [record, ended]})
    path = tmp_path / "loss_cost_cpu.json"
    for other in ("tokens", "width", "steps"):
        case = {**record, other: 1}
        with pytest.raises(UserError, match="other settings.*--restart"):
            loss_cost.check_same_settings(path, [record], case)
    loss_cost.check_same_settings(path, [record], {**record, "vocabulary": 5})


def test_text_becomes_a_padded_corpus(tmp_path):
    text = tmp_path / "text"
    text.write_text(" the cat\n\n the mat\n")
    prepare(text, 20, tmp_path)
    dictionary = Dictionary.load(str(tmp_path / "dict.txt"))
    rows = load_indexed_dataset(str(tmp_path / "train"), dictionary)
    assert len(dictionary) == 20
    assert [dictionary.string(rows[i]) for i in range(len(rows))] == ["the cat", "", "the mat"]
