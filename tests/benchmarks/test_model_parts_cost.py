"""The benchmark of TransNormer's parts: its comparisons, and what its worker counts."""

import itertools

import torch

from benchmarks import model_parts_cost
from benchmarks.model_parts_cost import ratios
from causal_linear_attention import causal_linear_attention
from lab.methods import VANILLA
from tests.helpers.counting import Dispatched

T1 = "transnormer_t1"
TINY = {"layers": 2, "width": 16, "heads": 2, "vocabulary": 100}


def test_times_are_compared_inside_a_process():
    def record(turn, vanilla, other):
        seconds = {VANILLA: [vanilla] * 3, T1: [other] * 3}
        place = {"length": 512, "size": TINY, "checkout": "now", "turn": turn}
        return {"kind": "training", **place, "seconds": seconds}

    found = ratios([record(0, 1.0, 2.0), record(1, 10.0, 11.0), record(2, 1.0, 1.5)])
    assert found == {("time of training, length 512, width 16, 2 layers", T1, "now"): 1.5}


def test_peaks_and_the_backend_have_their_own_yardsticks():
    peaks = [
        {"kind": "peak", "length": 1024, "architecture": name, "checkout": "before", "kib": kib}
        for name, kib in ((VANILLA, 60), (T1, 90))
    ]
    names = ("plain", "torch", "plain, backward too", "torch, backward too")
    seconds = dict(zip(names, ([2.0], [1.0], [4.0], [5.0]), strict=True))
    backend = {"kind": "backend", "length": 512, "checkout": "before", "seconds": seconds}
    found = ratios([*peaks, backend])
    assert found["peak memory, length 1,024", T1, "before"] == 1.5
    assert found["time of backend, length 512", "torch", "before"] == 0.5
    assert found["time of backend, length 512", "torch, backward too", "before"] == 1.25


def test_the_plain_chunk_is_the_same_product():
    q, k, v = torch.randn(3, 1, 2, 256, 8, dtype=torch.float64)
    torch.testing.assert_close(model_parts_cost.plain(q, k, v), causal_linear_attention(q, k, v))


def test_the_worker_counts_storages_and_operators():
    case = {"architectures": [VANILLA, T1], "size": TINY, "length": 64, "rounds": 1}
    kib = model_parts_cost.kept(case)["kib"]
    assert all(x * 1024 > 10 * TINY["layers"] * TINY["width"] * 4 for x in kib.values())
    found = model_parts_cost.decoding(case)
    assert all(len(x) == 1 for x in found["seconds"].values())
    assert found["calls"][T1] > 40


def test_arithmetic_is_a_part_of_the_step(monkeypatch):
    """With a clock that ticks when it is read, its time is the number of its operators, and a step's is 1."""
    case = {"architectures": [VANILLA, T1], "size": TINY, "length": 64, "tokens": 128, "rounds": 1}
    case["optimizer"] = "adamw_fused"
    operators = {}
    for name, lm in model_parts_cost.models(case, 64).items():
        with Dispatched() as counted:
            lm.train_step(lm.sample(2, 64))
        operators[name] = counted.calls
    monkeypatch.setattr(model_parts_cost.time, "thread_time", itertools.count().__next__)
    for name, share in model_parts_cost.share(case)["shares"].items():
        calls = operators.pop(name)
        arithmetic = {one: n for one, n in calls.items() if one.split(".")[-2] in model_parts_cost.ARITHMETIC}
        assert 0 < share == sum(arithmetic.values()) < calls.total()
    assert not operators
    place = {"kind": "share", "length": 64, "size": TINY, "checkout": "now"}
    found = ratios([{**place, "shares": {T1: share}} for share in (0.5, 0.75, 0.25)])
    assert found == {("share of arithmetic, length 64, width 16, 2 layers", T1, "now"): 0.5}
