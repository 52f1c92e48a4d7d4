"""The encoders' cost benchmark: cases, flags, one tiny measurement, and the report. No times are judged."""

import pytest
import torch

from benchmarks import roberta_cost
from benchmarks.models import TINY
from benchmarks.roberta_cost import (
    BASE,
    BENCHMARK,
    DEFAULT,
    METHODS,
    SMALLER,
    MaskedLanguageModel,
    encoder_settings,
    goals,
    goals_by_encoder,
)
from tests.benchmarks.records import results, steps
from tests.helpers import forked

KNOWN = list(METHODS)
NAMES = ["roberta_softmax", "roberta_linear", "roberta_bigbird"]


def sample(linear_seconds=1e-3, growth=1.0) -> dict:
    """Softmax takes N² and the others N**growth; softmax has no memory at 16,384 and no time at 8,192."""

    def answer(case):
        n, softmax = case["length"], case["architecture"] == "roberta_softmax"
        if softmax and n >= 8192:
            return "time limit" if n == 8192 else "out of memory"
        time = 1e-6 * n**2 if softmax else linear_seconds * n**growth
        return steps(time, 2**20 * (n if softmax else 1))

    return results(roberta_cost, NAMES, answer)


def test_defaults_are_the_rows_asked_for():
    assert BENCHMARK.parse([]).architectures == DEFAULT
    assert BENCHMARK.parse(["--architectures", "all"]).architectures == KNOWN
    assert set(DEFAULT) <= set(KNOWN)


def test_every_encoder_of_the_plugin_is_known():
    from fairseq.models import MODEL_REGISTRY

    found = {n for n, m in MODEL_REGISTRY.items() if n.startswith("roberta_") and hasattr(m, "default_plan")}
    assert found == set(KNOWN)


def test_only_a_gpu_trains_the_base_size():
    assert roberta_cost.settings_for("cuda", False)["size"] == BASE.as_dict()
    assert roberta_cost.settings_for("cpu", False)["size"] == SMALLER.as_dict()


@pytest.mark.parametrize("name", KNOWN)
def test_at_base_size_the_settings_are_the_defaults(name):
    from fairseq.models import MODEL_DATACLASS_REGISTRY

    own = MODEL_DATACLASS_REGISTRY[name]()
    for key, value in encoder_settings(name, BASE).items():
        assert getattr(own, key) == value, key


def test_a_batch_is_masked_as_fairseq_masks():
    model = MaskedLanguageModel("roberta_linear", TINY, 40, 40, "cpu")
    batch = model.sample(2, 40)
    tokens, target = batch["net_input"]["src_tokens"], batch["target"]
    masked = target.ne(model.task.source_dictionary.pad())
    assert torch.equal(masked, tokens.eq(model.task.mask_idx)) and masked.sum(1).tolist() == [6, 6]
    assert len(model.task.source_dictionary) == TINY.vocabulary
    before = [p.clone() for p in model.model.parameters()]
    model.train_step(batch)
    assert any(not torch.equal(a, b) for a, b in zip(before, model.model.parameters(), strict=True))


def test_goals_are_judged():
    table = goals_by_encoder(sample())
    assert "not met" not in table and "from 4,096 on: at most 1" in table
    assert "| 1+elu | 0.24 | 0.00 | 2.00 |" in table
    fast = goals_by_encoder(sample(growth=1.2))
    assert "| 1+elu | 1.29, not met | 0.00 | 2.30, not met |" in fast
    assert "| 1+elu | 2.44, not met | 0.00 | 2.00 |" in goals_by_encoder(sample(linear_seconds=1e-2))
    nothing = goals_by_encoder({**sample(), "records": []})
    assert "| BigBird | not measured | not measured | not measured |" in nothing


def test_quadratic_peers_are_not_promised_to_be_linear():
    results = sample()
    results["settings"]["architectures"] = ["roberta_softmax", "roberta_kernelized", "roberta_flash_quad"]
    assert goals(results) == {}
    assert METHODS["roberta_kernelized"].label == "Kernelized"


def test_results_of_another_time_limit_are_not_mixed():
    """It is one of the settings, by which tests/benchmarks/test_run.py refuses."""
    arguments = BENCHMARK.parse(["--quick", "--device", "cpu", "--time-limit", "7"])
    assert BENCHMARK.settings(arguments)["time_limit"] == 7


@pytest.mark.slow
def test_memory_that_runs_out_is_a_row(monkeypatch):
    for patch in forked.patches():
        monkeypatch.setattr(*patch)
    words = ["--architectures", "roberta_softmax", "--time-limit", "120", "--memory-limit-gib", "1.5"]
    arguments = BENCHMARK.parse(words)
    case = {"kind": "training", "architecture": "roberta_softmax", "length": 8192, "round": 0}
    settings = {"device": "cpu", "size": SMALLER.as_dict(), "threads": 1, "steps": 1}
    record = BENCHMARK.measure(case, settings, arguments)
    assert record["status"] == "out of memory"
