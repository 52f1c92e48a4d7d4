"""measure_images.sh: runs are made once, table and picture come from their JSON, what bad input gets."""

import json
from base64 import b64decode

import numpy as np
import pytest

from pipeline.papers import read_table
from pipeline.reports.pixels import plot_pixels, read_results, write_pixel_table
from pipeline.studies import image_sweep, measured_cell
from tests.helpers.images import write_images
from user_dir.tasks.image_data import open_image_data

TINY = ["--max-update", 4, "--log-interval", 1, "--decoder-embed-dim", 16, "--decoder-ffn-embed-dim", 16]


@pytest.mark.slow
def test_a_sweep_is_run_once_and_its_table_comes_from_its_json(call, refused, tmp_path, capsys, monkeypatch):
    data, out = write_images(tmp_path / "slopes"), tmp_path / "runs"
    words = ["--attention", "linear,softmax", "--data", data, "--out", out, *TINY]
    call(image_sweep, *words)
    results = read_results(out)
    assert [result["method"] for result in results] == ["softmax", "linear"]
    true = open_image_data(data).images("test")
    for result in results:
        assert result["preset"] == "digits" and result["updates"] == 4
        assert result["images"] == {"train": 40, "valid": 9, "test": 11}
        assert all(0 < bits < 9 for bits in result["bits_per_dimension"].values())
        kept = {
            name: np.frombuffer(b64decode(text), np.uint8).reshape(-1, *result["shape"])
            for name, text in result["pictures"].items()
        }
        assert (kept["test images"] == true[:10]).all() and kept["drawn"].shape == (10, 4, 3, 1)
        assert (kept["completed"][:, :2] == true[:10, :2]).all()
        assert (kept["completed"][:, 2:] != true[:10, 2:]).any()
    assert (out / "images.md").read_text() == write_pixel_table(results) + "\n"
    plot_pixels(results, tmp_path / "again.png")
    assert (tmp_path / "again.png").read_bytes() == (out / "images.png").read_bytes()
    monkeypatch.setattr(measured_cell, "run_fairseq", None)
    call(image_sweep, *words)
    assert "2 runs, 2 done before" in capsys.readouterr().out
    assert "was made with other settings" in refused(image_sweep, *words, "--lr", "0.1")


def test_frequencies_of_levels(tmp_path):
    folder = write_images(tmp_path / "flat", levels=3, size=(1, 2, 1))
    for split, count in (("train", 7), ("test", 3)):
        levels = np.tile(np.array([2, 0], np.uint8), (count, 1))
        np.save(folder / f"{split}.images.npy", levels.reshape(-1, 1, 2, 1))
    bits = image_sweep.without_a_model(open_image_data(folder))
    assert bits["all levels alike"] == pytest.approx(np.log2(3))
    # One is added to each count: 8 of 10 at a place, and 9 of 20 at both.
    assert bits["one histogram per place"] == pytest.approx(-np.log2(8 / 10))
    assert bits["one histogram"] == pytest.approx(-np.log2(9 / 20))


def result(method, seed=1, bits=2.0):
    return {
        "preset": "digits", "method": method, "seed": seed, "flags": [], "updates": 40,
        "settings": {
            "model": {"decoder_layers": 2, "decoder_embed_dim": 64, "decoder_attention_heads": 4},
            "dataset": {"batch_size": 32},
        },
        "parameters": 1234, "corpus": "digits", "original_files": None, "shape": [8, 8, 1], "levels": 17,
        "images": {"train": 3, "valid": 2, "test": 1},
        "bits_per_dimension": {"train": bits - 0.1, "valid": bits, "test": bits + 0.1},
        "without_a_model": {"one histogram": 2.9}, "train_seconds": 50.0,
        "environment": {
            "hardware": {"cpu": "a CPU"}, "threads": 1, "date": "2000-01-02", "commit": "abc",
        },
    }  # fmt: skip


def test_the_table_has_the_papers_figures_from_their_file():
    paper = {row["method"]: row["bits_per_dim"] for row in read_table("linear_01_mnist")}
    rows = [result("softmax"), result("linear"), result("linear", 2, 2.5), result("t2")]
    lines = write_pixel_table(rows).splitlines()
    assert lines[2].startswith(f"| softmax | 1.900 | 2.000 | 2.100 | {paper['softmax']} | 1,234 | 50 |")
    assert f"| 2.350 (2.100 to 2.600) | {paper['linear']} |" in lines[3]
    assert lines[4].endswith("| 2.100 | – | 1,234 | 50 |")
    assert lines[5] == "| one histogram | – | – | 2.900 | – | – | – |"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--attention", "lsh"], "'lsh' is no attention of this command; choose all, or some of softmax, "),
        (["--decoder-attention", "elu"], "--decoder-attention differs from run to run; use --attention"),
        (["--seed", "3"], "--seed differs from run to run; use --seeds"),
        (["--data", "nowhere"], "nowhere; prepare it with data-prep/images.sh"),
    ],
)
def test_bad_input(refused, words, sentence):
    assert sentence in refused(image_sweep, *words)


def test_results_of_different_settings_are_not_joined(tmp_path):
    for seed, preset in ((1, "digits"), (2, "mnist")):
        (tmp_path / "linear").mkdir(exist_ok=True)
        path = tmp_path / "linear" / f"seed{seed}.json"
        path.write_text(json.dumps(result("linear", seed) | {"preset": preset}))
    with pytest.raises(ValueError, match="holds runs of different settings"):
        read_results(tmp_path)
