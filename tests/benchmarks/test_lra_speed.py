"""The speed benchmark of Long Range Arena: model, batches, tiny measurements, report. No times are judged."""

import json
import sys

import pytest
import torch

from benchmarks import lra_speed
from benchmarks.lra_speed import TextClassifier, markdown
from benchmarks.models import TINY
from lab.errors import UserError
from tests.benchmarks import records
from tests.helpers import forked
from tests.helpers.lra import write_lra

NAMES = ["softmax", "transnormer_t1", "elu"]


def sample() -> dict:
    """Softmax takes N² and has no memory at 5,000; the others take N, and elu too long at 5,000."""

    def answer(case):
        n, softmax = case["length"], case["architecture"] == "softmax"
        if n == 5000 and case["architecture"] != "transnormer_t1":
            return "out of memory" if softmax else "time limit"
        seconds = n * n / 1e6 if softmax else n / 1000
        found = records.steps(seconds, n * 2**20)
        return {**found, "step_tokens": [n] * 3, "whole_peak_bytes": (n + 100) * 2**20}

    return records.results(lra_speed, NAMES, answer)


def test_size_is_that_of_the_authors_scripts():
    """The count follows from the authors' scripts (6 layers of 128, GLU 170, batch norm)."""
    model = TextClassifier("transnormer_t1", lra_speed.BASE, 100, 100, "cpu", None)
    assert sum(p.numel() for p in model.model.parameters() if p.requires_grad) == 813_178


def test_reviews_are_cut_and_padded_to_the_longest(tmp_path):
    folder = write_lra(tmp_path / "text", "text", pipeline="state-space")
    model = TextClassifier("elu", TINY, 30, 30, "cpu", folder)
    first, second = model.sample(4, 30), model.sample(4, 30)
    tokens, lengths = first["net_input"]["src_tokens"], first["net_input"]["src_lengths"]
    assert tokens.shape == (4, int(lengths.max())) and 20 <= int(lengths.min()) <= int(lengths.max()) <= 30
    assert first["ntokens"] == int(lengths.sum())
    assert not torch.equal(tokens, second["net_input"]["src_tokens"])
    before = [p.clone() for p in model.model.parameters()]
    model.infer(first)
    assert all(torch.equal(a, b) for a, b in zip(before, model.model.parameters(), strict=True))
    model.train_step(first)
    assert any(not torch.equal(a, b) for a, b in zip(before, model.model.parameters(), strict=True))


def test_each_status_has_its_word():
    text = markdown(sample())
    assert "| softmax, here | 1.00 | 0.25 | 0.11 | 0.06 | – |" in text
    assert "| 1+elu, here | 1.00 | 0.50 | 0.33 | 0.25 | over 60 s |" in text


def test_wrong_folders(tmp_path):
    image = write_lra(tmp_path / "image", "image")
    with pytest.raises(UserError, match="holds image; the benchmark reads text"):
        lra_speed.settings_for("cpu", False, "review", image)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_quick_run_from_another_folder(tmp_path):
    out = tmp_path / "a b" / "speed.json"
    command = [sys.executable, "-m", "benchmarks.lra_speed", "--quick", "--device", "cpu"]
    command += ["--architectures", "elu", "--out", out]
    forked.run(command, cwd=tmp_path, check=True)
    names = {path.name for path in out.parent.iterdir()}
    assert names == {"speed.json", "speed.md", "speed.png"}
    assert {record["status"] for record in json.loads(out.read_text())["records"]} == {"ok"}
