"""Ten updates of every architecture on the corpus that needs no download, and two processes of two peers."""

import math
import subprocess
import sys

import pytest
import torch
from fairseq.models import MODEL_REGISTRY

from tests.helpers import forked
from tests.helpers.train_each import COMMON, ROOT, flags
from tests.models.conftest import losses, train_in_two_processes

ARCHITECTURES = sorted(
    name
    for name, model in MODEL_REGISTRY.items()
    if hasattr(model, "default_plan") and not name.startswith("lra_")
)


@pytest.fixture(scope="module")
def bundled(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bundled") / "data"
    command = [sys.executable, "-m", "pipeline.data.bundled_corpus", "--dest", str(folder)]
    forked.run([*command, "--vocab-size", "500"], check=True)
    return folder


@pytest.fixture(scope="module")
def logs(bundled) -> dict[str, str]:
    """What each architecture's training printed."""
    command = [sys.executable, "-m", "tests.helpers.train_each", str(bundled), *ARCHITECTURES]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    sections = done.stdout.split("== ")[1:]
    return {section.split("\n", 1)[0]: section for section in sections}


def test_all_methods_are_there():
    assert len(ARCHITECTURES) == 11 + 20  # language models and encoders


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_ten_updates(logs, name):
    values = [float(loss) for loss in losses(logs[name]).values()]
    assert len(values) == 10, logs[name][-3000:]
    assert all(map(math.isfinite, values))
    assert values[-1] < values[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("performer_lm", ["--performer-redraw", "2"]),
        ("roberta_nystromformer", ["--nystromformer-landmarks", "8"]),
    ],
)
def test_two_processes_equal_one_with_twice_the_accumulation(bundled, tmp_path, name, options):
    saving = [word for word in COMMON if word != "--no-save"]
    command = [sys.executable, "-m", "fairseq_cli.train", str(bundled), *saving, *flags(name), *options]
    command += ["--dropout", "0", "--max-update", "4"]
    one, two = ([*command, "--save-dir", str(tmp_path / folder)] for folder in ("one", "two"))
    forked.run([*one, "--update-freq", "2"], check=True)
    train_in_two_processes(two)
    one, two = (torch.load(tmp_path / name / "checkpoint_last.pt")["model"] for name in ("one", "two"))
    for key, value in one.items():
        torch.testing.assert_close(two[key], value, rtol=1e-3, atol=1e-4, msg=key)
