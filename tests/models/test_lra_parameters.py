"""Parameter counts of both Long Range Arena presets, as measured on or computed from the authors' code."""

import pytest
import torch

from lab.files import ROOT
from lab.run.plan import read_experiment
from tests.helpers.build import build_model
from tests.helpers.lra import lra_task
from user_dir.models.architectures import TRANSNORMER_ROBERTA

T1, T2 = ({"encoder_attention": f"transnormer_{name}"} for name in ("t1", "t2"))
# Softmax attention, then TransNormer T1 and T2 in the same frame.
SKYFORMER = {
    "listops": (209_802, 209_150),
    "text": (370_562, 369_910),
    "retrieval": (395_138, 394_486),
    "image": (158_602, 157_950),
    "pathfinder": (173_954, 173_302),
}
STATE_SPACE = {
    "listops": 69_086,
    "text": 76_054,
    "retrieval": 90_134,
    "image": 68_062,
    "pathfinder": 67_542,
}


def build(preset: str, task: str, **options: object) -> torch.nn.Module:
    """The model of a configuration, without storage."""
    settings = dict(read_experiment(ROOT / f"configs/lra_{preset}/{task}.yaml").settings["model"])
    name = settings.pop("_name")
    with torch.device("meta"):
        return build_model(name, lra_task(task, preset.replace("_", "-")), **{**settings, **options})


def trainable(preset: str, task: str, **options: object) -> int:
    return sum(p.numel() for p in build(preset, task, **options).parameters() if p.requires_grad)


@pytest.mark.parametrize("task", SKYFORMER)
def test_skyformer(task):
    softmax, transnormer = SKYFORMER[task]
    assert trainable("skyformer", task) == softmax
    for variant in (T1, T2):
        assert trainable("skyformer", task, **TRANSNORMER_ROBERTA, **variant) == transnormer


@pytest.mark.parametrize(("preset", "features"), [("skyformer", 128), ("state_space", 32)])
def test_features_of_performer(preset, features):
    model = build(preset, "text", encoder_attention="performer")
    assert [layer.self_attn.eval_proj.shape[1] for layer in model.layers] == [features] * 2


@pytest.mark.parametrize("task", STATE_SPACE)
def test_state_space(task):
    """T2 lacks the norm inside softmax blocks, which the authors' code builds and does not use."""
    assert trainable("state_space", task, **T1) == STATE_SPACE[task]
    assert trainable("state_space", task, **T2) == STATE_SPACE[task] - 2 * 64
