"""The speed benchmark of Long Range Arena: model, batches, tiny measurements, report. No times are judged."""

import json
import sys

import pytest
import torch

from benchmarks import lra_speed
from benchmarks.lra_speed import TextClassifier, caption, markdown, plot_accuracy, read_sweep
from benchmarks.models import TINY
from lab.errors import UserError
from lab.files import write_json
from lab.study.records import place_of
from tests.benchmarks import records
from tests.helpers import forked
from tests.helpers.lra import write_lra
from tests.lab.study.conftest import record_of

NAMES = ["softmax", "transnormer_t1", "elu"]


def cell(task: str, method: str, seed: int, accuracy: float, setting: str = "short") -> dict:
    """A record of study `lra`."""
    place = {"preset": "lra_skyformer", "setting": setting, "task": task, "method": method, "seed": seed}
    return record_of(place, {"accuracy": accuracy}, study="lra")


def write(folder, record):
    write_json(folder / place_of(record), record)
    return folder


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


def test_accuracy_is_drawn_where_speed_is_known(tmp_path):
    results = sample()
    cells = [cell("text", name, 1, 60.0) for name in NAMES]
    plot_accuracy(results, cells, caption(results), tmp_path / "accuracy.png")
    assert (tmp_path / "accuracy.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(UserError, match="no attention has both an accuracy and a speed at length 5,000"):
        plot_accuracy(results, cells[:1], "", tmp_path / "none.png")
    assert not (tmp_path / "none.png").exists()
    with pytest.raises(UserError, match="no attention was run on all tasks"):
        plot_accuracy(results, [*cells[:2], cell("image", "tnn", 1, 1.0)], "", tmp_path / "none.png")


def test_wrong_folders(tmp_path):
    image = write_lra(tmp_path / "image", "image")
    with pytest.raises(UserError, match="holds image; the benchmark reads text"):
        lra_speed.settings_for("cpu", False, "review", image)
    with pytest.raises(UserError, match=r"holds no record of scripts/study\.sh lra"):
        read_sweep(tmp_path)
    for setting in ("short", "learned"):
        write(tmp_path, cell("text", "elu", 1, 60.0, setting))
    assert len(read_sweep(tmp_path / "lra_skyformer" / "short")) == 1
    with pytest.raises(UserError, match="holds runs of lra_skyformer/learned, lra_skyformer/short; name"):
        read_sweep(tmp_path)


@pytest.fixture
def sweep(tmp_path):
    """A folder with a record of study `lra`."""
    return write(tmp_path / "sweep", cell("text", "elu", 1, 60.0))


def test_a_picture_of_something_else_is_kept(sweep, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["", "--quick", "--out", f"{tmp_path}/a.json", "--sweep", str(sweep)])
    (tmp_path / "a_accuracy.png").touch()
    with pytest.raises(UserError, match="a_accuracy.png is no result of this command"):
        lra_speed.main()


@pytest.mark.slow
def test_quick_run_from_another_folder(sweep, tmp_path):
    out = tmp_path / "a b" / "speed.json"
    command = [sys.executable, "-m", "benchmarks.lra_speed", "--quick", "--device", "cpu"]
    command += ["--architectures", "elu", "--out", out, "--sweep", sweep]
    forked.run(command, cwd=tmp_path, check=True)
    names = {path.name for path in out.parent.iterdir()}
    assert names == {"speed.json", "speed.md", "speed.png", "speed_accuracy.png"}
    assert {record["status"] for record in json.loads(out.read_text())["records"]} == {"ok"}
