"""measure_vit.sh: runs are made once, the table beside the paper's figures, what bad input gets."""

import json

import pytest

from pipeline.papers import read_table
from pipeline.reports.vit import plot_vit, read_results, write_vit_table
from pipeline.studies import measured_cell, vit_sweep
from tests.helpers.images import write_images

TINY = ["--batch-size", 8, "--max-update", 4, "--log-interval", 1, "--patch-size", 2, "--encoder-layers", 4]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_images(tmp_path_factory.mktemp("data") / "slopes", size=(8, 8, 1))


@pytest.mark.slow
def test_a_sweep_is_run_once_and_its_table_comes_from_its_json(
    call, refused, data, tmp_path, capsys, monkeypatch
):
    words = ["--attention", "lln_diag", "--alpha", "0.5", "--data", data, "--out", tmp_path, *TINY]
    call(vit_sweep, *words)
    found = {path.parent.name: json.loads(path.read_text()) for path in tmp_path.glob("*/seed1.json")}
    assert set(found) == {"lln_diag", "lln_diag-0.5"}
    for result in found.values():
        assert result["preset"] == "digits" and result["updates"] == 4 and result["examples"] == 11
        assert result["correct"] == pytest.approx(result["accuracy"] * 11 / 100)
    exponents = found["lln_diag"]["exponents"]
    assert [update for update, _ in exponents["alpha/layer3"]] == [1, 2, 3, 4] and len(exponents) == 8
    assert {value for _, value in found["lln_diag-0.5"]["exponents"]["beta/layer0"]} == {0.5}
    table = (tmp_path / "vit.md").read_text()
    assert table == write_vit_table(read_results(tmp_path)) + "\n"
    assert "LLN+Diag, α = β = 0.5 |" in table and "| layer 3 |" in table and "patches of 1" in table
    assert (tmp_path / "vit.png").read_bytes().startswith(b"\x89PNG")
    monkeypatch.setattr(measured_cell, "run_fairseq", None)
    call(vit_sweep, *words)
    assert "2 runs, 2 done before" in capsys.readouterr().out
    assert "was made with other settings" in refused(vit_sweep, *words, "--lr", "0.1")


def result(method, alpha=None, seed=1, accuracy=90.0, **others):
    exponents = {"alpha/layer0": [[20, 1.9], [40, 2.1]], "beta/layer0": [[20, 2.2], [40, 2.3]]}
    return {
        "preset": "digits", "method": method, "alpha": alpha, "seed": seed, "flags": [], "updates": 40,
        "settings": {"model": {"patch_size": 1}, "dataset": {"batch_size": 64}}, "architecture": "vit",
        "parameters": 1234, "corpus": "digits", "original_files": None, "training_images": 1297,
        "split": "test", "examples": 250, "accuracy": accuracy, "valid_accuracy": [[20, 10.0], [40, 50.0]],
        "gradient_norm": 1.5, "smallest_loss_scale": None, "train_seconds": 50.0,
        "exponents": exponents if method == "lln_diag" else {},
        "environment": {
            "hardware": {"cpu": "a CPU"}, "threads": 1, "date": "2000-01-02", "commit": "abc",
        },
        **others,
    }  # fmt: skip


def write(folder, *results):
    for one in results:
        path = folder / one["method"] / f"seed{one['seed']}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(one))
    return read_results(folder)


def test_the_table_has_the_papers_figures_from_their_file(tmp_path):
    paper = {row["method"]: row["accuracy"] for row in read_table("lln_03_vit")}
    rows = [result("t2"), result("lln_diag", accuracy=94.0), result("lln_diag", seed=2, accuracy=92.0)]
    rows += [result("linformer"), result("softmax"), result("lln_diag-8", 8.0), result("lln_diag-0.25", 0.25)]
    found = write(tmp_path, *rows)
    lines = write_vit_table(found).splitlines()
    assert [line.split("|")[1].strip() for line in lines[2:8]] == [
        "softmax", "LLN+Diag", "LLN+Diag, α = β = 0.25", "LLN+Diag, α = β = 8", "Linformer", "TransNormer T2",
    ]  # fmt: skip
    assert f"| 93.0 (92.0 to 94.0) | {paper['LLN+Diag']} | 1,234 | 1.50 | 50 |" in lines[3]
    assert f"| {paper['Softmax']} |" in lines[2] and f"| {paper['Linformer']} |" in lines[6]
    assert "| – |" in lines[4] and "| – |" in lines[7]
    assert "| layer 0 | 1.90 to 2.10 | 2.20 to 2.30 |" in lines
    plot_vit(found, tmp_path / "vit.png")
    assert (tmp_path / "vit.png").stat().st_size > 10_000


def test_the_inverse_of_the_loss_scale_is_shown_where_there_is_one(tmp_path):
    found = write(tmp_path, result("softmax"), result("lln_diag-4", 4.0, smallest_loss_scale=64.0))
    table = write_vit_table(found)
    assert "largest 1 / loss scale" in table and "| 1.6e-02 |" in table and "| – | 50 |" in table


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--attention", "norm"], "'norm' is no attention of this command; choose all, or some of softmax, "),
        (["--alpha", "2,x"], "--alpha is 2,x; expected numbers above 0, separated by commas"),
        (["--alpha", "0"], "--alpha is 0; expected numbers above 0"),
        (["--lln-diag-alpha", "3"], "--lln-diag-alpha differs from run to run; use --alpha"),
        (["--seed", "3"], "--seed differs from run to run; use --seeds"),
        (["--preset", "mnist"], "invalid choice: 'mnist'"),
        (["--data", "nowhere"], "nowhere; prepare it with data-prep/images.sh"),
    ],
)
def test_bad_input(refused, words, sentence):
    assert sentence in refused(vit_sweep, *words)


def test_results_of_different_settings_are_not_joined(tmp_path):
    with pytest.raises(ValueError, match="holds runs of different settings"):
        write(tmp_path, result("softmax"), result("t1", flags=["--lr", "1"]))
