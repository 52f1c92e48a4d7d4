"""How many kernels a training step of a compiled language model launches, counted on the CPU.

Inductor's own kernels are counted and not run, for it would compile their C++ for minutes; the others are
what the profiler sees.
"""

import importlib
from collections import Counter

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from causal_linear_attention import extension
from tests.helpers.lm import build_lm, tokens
from user_dir.models.compiled import compile_features

pytestmark = [
    pytest.mark.slow,
    pytest.mark.longest,
    pytest.mark.exhaustive,
    pytest.mark.skipif(not extension.loaded("cpp"), reason=extension.reason("cpp") or "loaded"),
]
PRODUCTS = ("aten::addmm", "aten::mm", "aten::bmm", "aten::baddbmm", "aten::_scaled_dot_product")
OPERATORS = (*PRODUCTS, "causal_linear_attention::", "aten::cumsum")
MOST = 1.1  # times vanilla's 59 launches; T1 has 60, T2 61 with torch 2.13


@pytest.fixture
def launches(monkeypatch):
    """A function from the name of an architecture to its launches by kind, "fused" among them."""
    fused, inductor = [], importlib.import_module("torch._inductor.async_compile")  # takes a second
    monkeypatch.setattr(inductor.AsyncCompile, "cpp_pybinding", lambda *_, **__: lambda *_: fused.append(1))

    def count(name):
        torch._dynamo.reset()
        model, given = build_lm(name, decoder_layers=2, dropout=0.1).train(), tokens(2, 256)
        compile_features(model)

        def step():
            model(given, features_only=True)[0].sum().backward()

        for _ in range(3):  # the second call of vanilla's compiles again
            step()
        model.zero_grad()
        fused.clear()
        with profile(activities=[ProfilerActivity.CPU]) as profiled:
            step()
        found = Counter(x.name for x in profiled.events() if x.name.startswith(OPERATORS) and not _inner(x))
        return found + Counter(fused=len(fused))

    yield count
    torch._dynamo.reset()


def _inner(event):
    """Whether another operator called this one."""
    return event.cpu_parent is not None and event.cpu_parent.name.startswith(("aten::", "causal_"))


def test_transnormers_launch_few_more_kernels_than_vanilla(launches):
    vanilla = launches("transformer_lm")
    assert vanilla["fused"] > 0
    for name in ("transnormer_t1", "transnormer_t2"):
        ours = launches(name)
        assert ours["causal_linear_attention::forward"] == ours["causal_linear_attention::backward"] == 1
        assert ours["fused"] > 0
        assert ours.total() <= MOST * vanilla.total(), (name, ours, vanilla)
