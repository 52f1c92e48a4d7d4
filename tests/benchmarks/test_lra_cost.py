"""The cost benchmark of Long Range Arena: its setting, its batches, its tables. No times are judged."""

import pytest
import torch

from benchmarks import lra_cost
from benchmarks.lra_cost import MEASURES, TaskClassifier, markdown
from benchmarks.models import TINY
from tests.benchmarks.records import results, steps


def test_setting_is_the_papers():
    tasks = lra_cost.settings_for("cuda", False)["tasks"]
    assert {name: (about["batch"], about["length"]) for name, about in tasks.items()} == {
        "text": (32, 4096),
        "listops": (32, 2048),
        "retrieval": (16, 4096),
        "pathfinder": (128, 1024),
        "image": (256, 1024),
    }
    assert lra_cost.settings_for("cpu", False)["tasks"]["retrieval"]["batch"] == 2


@pytest.mark.parametrize(
    ("name", "task", "parameters"),
    [("softmax", "text", 370_562), ("transnormer_t1", "text", 369_910), ("softmax", "retrieval", 395_138)],
)
def test_model_is_that_of_the_preset(name, task, parameters):
    """The counts follow from Skyformer's code and TransNormer's appendix E."""
    model = TaskClassifier(name, lra_cost.BASE, 4096, 4096, "cpu", task)
    assert sum(p.numel() for p in model.model.parameters() if p.requires_grad) == parameters


@pytest.mark.parametrize("task", MEASURES)
def test_batches_are_those_of_the_task(task):
    model = TaskClassifier("lln_diag", TINY, 40, 40, "cpu", task)
    batch = model.sample(3, 40)
    pairs, pixels = task == "retrieval", task in ("image", "pathfinder")
    assert ("other_tokens" in batch["net_input"]) == pairs
    assert batch["ntokens"] == 3 * 40 * (2 if pairs else 1)
    assert (batch["net_input"]["src_tokens"].dtype == torch.uint8) == pixels
    before = [p.clone() for p in model.model.parameters()]
    model.train_step(batch)
    assert any(not torch.equal(a, b) for a, b in zip(before, model.model.parameters(), strict=True))


def test_ratios_stand_beside_the_papers():
    def answer(case):
        if case["architecture"] == "softmax" and case["kind"] == "text":
            return "out of memory"
        seconds = 3.0 if case["architecture"] == "softmax" else 0.5
        return steps(seconds, int(seconds * 2**20))

    text = markdown(results(lra_cost, ["softmax", "lln_diag", "elu"], answer))
    assert "| softmax | – (7.05) | 6.00 (3.33) |" in text
    assert "| 1+elu | 1.00 | 1.00 | 1.00 | 1.00 | 1.00 |" in text
    assert "| softmax, here | out of memory | 150,000 |" in text
    assert "| LLN+Diag (LLN) | 3,043 | 1,774 |" in text
