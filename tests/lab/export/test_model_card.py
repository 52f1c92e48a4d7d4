"""The model card has the run's records of these weights, and none of others."""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml

from lab.data.published import CORPORA
from lab.export import export_hf
from lab.export.model_card import RecordedPerplexity, RunRecord, limits, metadata, model_card, read_run
from lab.files import read_json, write_json
from lab.provenance import commit
from lab.run.checkpoint import read_checkpoint
from lab.store import STORE, write_store

CHECKPOINT = "checkpoint_last.pt"


@pytest.fixture
def run(trained, tmp_path) -> Path:
    """A copy of the run, which the tests may change, without the evaluations of other tests."""
    evaluated = shutil.ignore_patterns("checkpoint_*.json")
    return shutil.copytree(trained, tmp_path / "run", ignore=evaluated)


def exported(call, run: Path, out: Path) -> tuple[dict, str]:
    """The header and the text of the card."""
    call(export_hf, run / CHECKPOINT, out)
    _, header, text = (out / "README.md").read_text().split("---\n", 2)
    return yaml.safe_load(header), text


def figures(header: dict) -> dict[tuple[str, str], float]:
    """The figures of a header by split and name."""
    [entry] = header["model-index"]
    return {
        (result["dataset"]["split"], metric["name"]): metric["value"]
        for result in entry["results"]
        for metric in result["metrics"]
    }


def test_validation_of_the_training(call, run, tmp_path):
    header, text = exported(call, run, tmp_path / "out")
    bits = read_checkpoint(run / CHECKPOINT).score
    assert figures(header) == {("valid", "perplexity per token"): pytest.approx(2**bits, abs=1e-4)}
    assert header["pipeline_tag"] == "text-generation" and "transnormer_t1" in header["tags"]
    mine = tmp_path / "out" / "README.md"
    mine.write_text("---\n---\nmy own card")
    exported(call, run, tmp_path / "out")
    assert mine.read_text() == "---\n---\nmy own card"
    assert "tiny, tokenizer: words." in text and "4 updates" in text
    assert f"exported with commit {commit()}" in text and "Trained with commit unknown" in text


@pytest.mark.parametrize(
    ("metric", "score", "splits"), [("ppl", 80.0, []), ("loss", 9.0, ["valid"]), ("loss", 2e3, [])]
)
def test_validation_by_another_metric_or_of_a_diverged_run_is_no_loss(run, metric, score, splits):
    state = torch.load(run / CHECKPOINT)
    state["cfg"]["checkpoint"]["best_checkpoint_metric"] = metric
    state["extra_state"]["val_loss"] = score
    torch.save(state, run / CHECKPOINT)
    assert [one.split for one in read_run(read_checkpoint(run / CHECKPOINT)).evaluations] == splits


def test_evaluation_takes_precedence(call, run, corpus, tmp_path):
    call("scripts/eval_ppl.sh", run / CHECKPOINT, corpus, "--split", "test")
    header, text = exported(call, run, tmp_path / "out")
    result = read_json(run / "checkpoint_last.test.json")
    assert figures(header) == {
        ("test", "perplexity per token"): pytest.approx(result["perplexity_per_token"], abs=1e-4),
        ("test", "perplexity per word"): pytest.approx(result["perplexity_per_word"], abs=1e-4),
    }
    assert "scripts/eval_ppl.sh --tokens-per-sample 32" in text


def test_the_command_of_a_result_has_its_flags(run):
    result = {"updates": 4, "corpus": "tiny", "perplexity_per_token": 7.0, "tokens_per_sample": 32}
    write_json(run / "checkpoint_last.test.json", {**result, "flags": ["--sample-break-mode", "eos"]})
    [evaluation] = read_run(read_checkpoint(run / CHECKPOINT)).evaluations
    assert evaluation.source == "scripts/eval_ppl.sh --tokens-per-sample 32 --sample-break-mode eos"


def test_results_of_other_weights_or_data_are_passed_over(run):
    result = {"updates": 3, "perplexity_per_token": 7.0, "model_overrides": {}, "tokens_per_sample": 32}
    write_json(run / "checkpoint_last.test.json", result)
    write_json(run.with_name("run.json"), {"study": "lm", "found": {"best_update": 3}})
    assert [one.split for one in read_run(read_checkpoint(run / CHECKPOINT)).evaluations] == ["valid"]
    write_json(run / "checkpoint_last.test.json", {**result, "updates": 4, "corpus": "wikitext-103"})
    assert [one.split for one in read_run(read_checkpoint(run / CHECKPOINT)).evaluations] == ["valid"]
    result |= {"updates": 4, "corpus": "tiny"}
    write_json(run / "checkpoint_last.test.json", {**result, "architecture": "lln_lm"})
    assert [one.split for one in read_run(read_checkpoint(run / CHECKPOINT)).evaluations] == ["valid"]
    write_json(run / "checkpoint_last.test.json", {**result, "architecture": "transnormer_t1"})
    assert read_run(read_checkpoint(run / CHECKPOINT)).evaluations == [
        RecordedPerplexity(
            "test", {"perplexity per token": 7.0}, "scripts/eval_ppl.sh --tokens-per-sample 32"
        )
    ]


@pytest.mark.parametrize("is_stored", [False, True])
def test_record_of_a_study(is_stored, run, tmp_path):
    (tmp_path / "study" / "elu").mkdir(parents=True)
    run = run.rename(tmp_path / "study" / "elu" / "seed1")
    (run / "data.json").unlink()
    found = {"best_update": 4, "valid": {"perplexity": 8.0, "perplexity_per_word": None}}
    found["test"] = {"perplexity": math.inf, "perplexity_per_word": 9.0}
    record = {
        "study": "lm",
        "cell": {"method": "elu", "seed": 1},
        "settings": {},
        "training": {"curves": {}},
        "found": found,
        "data": {"corpus": "wikitext-2"},
        "environment": {"commit": "abc"},
    }
    path = run.with_name("seed1.json")
    write_json(path, record)
    if is_stored:
        write_store(tmp_path / "study" / STORE, [read_json(path)])
        path.unlink()
    read = read_run(read_checkpoint(run / CHECKPOINT))
    assert read.commit == "abc" and read.data == {"corpus": "wikitext-2"}
    assert read.evaluations == [
        RecordedPerplexity("valid", {"perplexity per token": 8.0}, "scripts/study.sh lm"),
        RecordedPerplexity("test", {"perplexity per word": 9.0}, "scripts/study.sh lm"),
    ]


def test_a_damaged_record_is_named(refused, run, tmp_path):
    (run / "checkpoint_last.test.json").write_text("{")
    sentence = refused(export_hf, run / CHECKPOINT, tmp_path / "out")
    assert "checkpoint_last.test.json cannot be read as JSON" in sentence


def test_licence_of_the_data():
    settings = {"plan": [["norm"]], "positions": "none"}
    run = RunRecord("transnormer_t1", 5, {"corpus": "wikitext-103"}, [], None)
    card = model_card("t1", "CausalLM", settings, run).decode()
    assert CORPORA["wikitext-103"].licence in card
    assert "hold no perplexity" in card and "model-index" not in metadata("t1", "CausalLM", run)


@pytest.mark.parametrize(
    ("plan", "positions", "word"),
    [("lln", "none", "exponents"), ("softmax", "none", "grow with"), ("norm", "learned", "at most 512")],
)
def test_limits(plan, positions, word):
    settings = {"plan": [["norm"], [plan]], "positions": positions, "max_position_embeddings": 512}
    assert word in " ".join(limits("CausalLM", settings))


def test_hubs_read_the_header(with_transformers, tmp_path):
    evaluations = [
        RecordedPerplexity("test", {"perplexity per token": 7.25, "perplexity per word": 9.5}, "a")
    ]
    run = RunRecord("transnormer_t1", 5, {"corpus": "wikitext-2"}, evaluations, None)
    card = model_card("t1", "CausalLM", {"plan": [["norm"]], "positions": "none"}, run)
    (tmp_path / "README.md").write_bytes(card)
    with_transformers("read_card", tmp_path)
    assert json.loads((tmp_path / "answer.json").read_text()) == [
        ["wikitext-2", "test", "perplexity", "perplexity per token", 7.25],
        ["wikitext-2", "test", "perplexity", "perplexity per word", 9.5],
    ]


def test_it_names_what_the_weights_are_the_average_of(call, run, corpus):
    saved, path = read_checkpoint(run / CHECKPOINT), run / "average.pt"  # the first is mapped into memory
    state = {**saved.state, "averaged": ["one.pt (update 2)", "other.pt (update 4)"]}
    averaged = replace(saved, path=path, state=state)
    torch.save(state, path)
    call("scripts/eval_ppl.sh", path, corpus)
    record = read_run(averaged)
    assert "test" in [one.split for one in record.evaluations]
    card = model_card("a", "CausalLM", {"plan": [["norm"]], "positions": "none"}, record).decode()
    assert "The weights are the average of one.pt (update 2), other.pt (update 4)." in card
    other = replace(averaged, state={**saved.state, "averaged": ["another"]})
    assert "test" not in [one.split for one in read_run(other).evaluations]
