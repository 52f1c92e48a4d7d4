"""Ten updates of every architecture on the corpus that needs no download, on a CPU and on a GPU in half
precision, and two processes of two peers."""

import math
import sys

import pytest
import torch
from fairseq.models import MODEL_REGISTRY

from lab.files import ROOT
from tests.helpers import forked
from tests.helpers.logs import losses
from tests.helpers.once import filled_once
from tests.models.conftest import assert_same_weights, train_in_two_processes

ARCHITECTURES = sorted(
    name
    for name, model in MODEL_REGISTRY.items()
    if hasattr(model, "default_plan") and not name.startswith(("lra_", "pixel_", "vit", "retnet_lm_"))
)
# Without the exhaustive tests: a model with decays, one without and an encoder.
TRAINED = ("retnet_lm", "transnormer_t1", "roberta_lln_diag")
COMMON = (
    "--user-dir",
    str(ROOT / "user_dir"),
    "--max-update",
    "10",
    "--batch-size",
    "4",
    "--tokens-per-sample",
    "64",
    "--sample-break-mode",
    "none",
    "--optimizer",
    "adam",
    "--lr",
    "0.003",
    "--clip-norm",
    "1",
    "--seed",
    "1",
    "--log-format",
    "json",
    "--log-interval",
    "1",
    "--no-save",
    "--disable-validation",
    "--num-workers",
    "0",
)
LANGUAGE_MODEL = (
    "--task",
    "language_modeling",
    "--max-target-positions",
    "64",
    "--decoder-layers",
    "2",
    "--decoder-embed-dim",
    "16",
    "--decoder-ffn-embed-dim",
    "32",
)
ENCODER = (
    "--task",
    "masked_lm",
    "--criterion",
    "masked_lm",
    "--max-positions",
    "128",
    "--encoder-layers",
    "2",
    "--encoder-embed-dim",
    "16",
    "--encoder-ffn-embed-dim",
    "32",
)
ONE_HEAD = ("cosformer_lm", "flash_lm", "flash_quad_lm", "tnn_lm")


def flags(name: str) -> list[str]:
    """The flags of a small model of architecture `name`."""
    encoder = name.startswith("roberta_")
    words = [*(ENCODER if encoder else LANGUAGE_MODEL), "--arch", name]
    if name not in (*ONE_HEAD, "roberta_flash", "roberta_flash_quad", "roberta_tnn"):
        words += ["--encoder-attention-heads" if encoder else "--decoder-attention-heads", "2"]
    return words


@pytest.fixture(scope="module")
def bundled(tmp_path_factory):
    def fill(folder):
        command = [sys.executable, "-m", "lab", "data-prep/bundled_corpus.sh", "--dest", str(folder / "data")]
        forked.run([*command, "--vocab-size", "500"], check=True)

    return filled_once(tmp_path_factory, "bundled corpus", fill) / "data"


def test_all_methods_are_there():
    assert len(ARCHITECTURES) == 14 + 20  # language models and encoders


def assert_learns(data, *options):
    command = [sys.executable, "-m", "fairseq_cli.train", data, *COMMON, *options]
    values = list(losses(forked.run(command, check=True).stdout).values())
    assert len(values) == 10
    assert all(map(math.isfinite, values))
    assert values[-1] < values[0]


@pytest.mark.parametrize(
    "name",
    [pytest.param(x, marks=() if x in TRAINED else pytest.mark.exhaustive) for x in ARCHITECTURES],
)
def test_ten_updates(bundled, name):
    assert_learns(bundled, "--cpu", *flags(name))


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("precision", ["--fp16", "--bf16"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_ten_updates_on_a_gpu(bundled, name, precision):
    width = "--encoder-embed-dim" if name.startswith("roberta_") else "--decoder-embed-dim"
    assert_learns(bundled, precision, "--fp16-init-scale", "4", *flags(name), width, "64")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("performer_lm", ["--performer-redraw", "2"]),
        pytest.param(
            *("roberta_nystromformer", ["--nystromformer-landmarks", "8"]), marks=pytest.mark.exhaustive
        ),
        pytest.param(*("roberta_skyformer", ["--skyformer-landmarks", "8"]), marks=pytest.mark.exhaustive),
    ],
)
def test_two_processes_equal_one_with_twice_the_accumulation(bundled, tmp_path, name, options):
    saving = [word for word in COMMON if word != "--no-save"]
    command = [sys.executable, "-m", "fairseq_cli.train", str(bundled), *saving, *flags(name), *options]
    command += ["--cpu", "--dropout", "0", "--max-update", "4"]
    one, two = ([*command, "--save-dir", str(tmp_path / folder)] for folder in ("one", "two"))
    forked.run([*one, "--update-freq", "2"], check=True)
    train_in_two_processes(two)
    assert_same_weights(tmp_path, rtol=1e-3, atol=1e-4)
