"""Models in one compiled graph: the same features and gradients, and padding runs as before."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from tests.helpers.cases import firstly
from tests.helpers.lm import PAD, build_lm, tokens
from tests.helpers.roberta import build_roberta
from user_dir.errors import UserError
from user_dir.models.compiled import compile_features
from user_dir.modules.padding import padding_last, rows_without_padding

# Two bodies of either kind; tests/attention/every compiles a layer of each mechanism.
MODELS = firstly(1, ["transnormer_t1", "roberta_lln_diag", "transformer_lm", "roberta_transnormer_t2"])


def build(name, **options):
    return (build_roberta if name.startswith("roberta") else build_lm)(name, **options).train()


def features(model, given):
    model.zero_grad()
    out = model(given, src_lengths=torch.tensor([given.shape[1]]), features_only=True)[0]
    out.square().sum().backward()
    return out.detach(), [p.grad.clone() for p in model.parameters() if p.grad is not None]


@pytest.fixture
def compiled():
    yield lambda model: compile_features(model, backend="aot_eager")
    torch._dynamo.reset()


@pytest.mark.slow
@pytest.mark.longest
@pytest.mark.parametrize("name", MODELS)
def test_the_whole_model_compiles_without_graph_breaks(name, compiled):
    """fullgraph is an error at a break. Then a batch with padding, which the graph is not asked for.

    In float64, for the gradients of angles cancel to a thousandth of float32's rounding.
    """
    model = build(name).double()
    whole, padded = tokens(2, 70), tokens(2, 70)
    padded[1, 60:] = PAD
    expected = [features(model, given) for given in (whole, padded)]
    compiled(model)
    features(model, whole)  # of two batches of a size, the second runs compiled
    for given, (out, grads) in zip((whole, padded), expected, strict=True):
        found, found_grads = features(model, given)
        torch.testing.assert_close(found, out)
        for x, y in zip(found_grads, grads, strict=True):
            torch.testing.assert_close(x, y)


def test_another_thread_still_asks_for_padding():
    padded = torch.tensor([[PAD, 5, 6]])
    with rows_without_padding(), ThreadPoolExecutor(1) as other:
        assert padding_last(padded, PAD)[1] is None
        found, mask, shift = other.submit(padding_last, padded, PAD).result()
    assert found.tolist() == [[5, 6, PAD]] and mask.any() and shift.tolist() == [1]


@pytest.fixture
def asked(monkeypatch):
    """The shapes for which a graph is requested; the graph does the same as the model."""
    shapes = []

    def compile_(function, fullgraph, dynamic, backend):
        assert fullgraph and not dynamic
        return lambda given, **others: shapes.append(given.shape) or function(given, **others)

    monkeypatch.setattr(torch, "compile", compile_)
    return shapes


@pytest.mark.parametrize("name", ["transnormer_t1", "roberta_transnormer_t1"])
def test_only_features_without_padding_are_asked_of_the_graph(name, asked):
    model = build(name).eval()
    wrapped = torch.nn.Module()
    wrapped.module = model  # as DDP holds it
    compile_features(wrapped)
    padded = tokens(2, 9)
    padded[1, 5:] = PAD
    for _ in range(2):
        model(tokens(2, 9), src_lengths=None, features_only=True)
    model(tokens(2, 9))
    model(padded, features_only=True)
    others = {"return_all_hiddens": True} if name.startswith("roberta") else {"incremental_state": {}}
    model(tokens(2, 9), features_only=True, **others)
    assert asked == [(2, 9)]


def test_only_one_size_is_compiled_for_training_and_one_for_evaluation(asked):
    model = build("transnormer_t1")
    compile_features(model)
    for batch, length in ((1, 9), (2, 9), (2, 9), (1, 9), (1, 9), (2, 9), (2, 8)):
        model(tokens(batch, length), features_only=True)
    assert asked == [(2, 9)] * 2
    with torch.no_grad():
        for batch in (2, 3, 3, 2):
            model(tokens(batch, 9), features_only=True)
    assert asked == [(2, 9)] * 2 + [(3, 9)]


def test_an_update_whose_attention_is_measured_runs_as_before(asked):
    model = build("lln_diag_lm", log_attention_statistics=2)
    compile_features(model)
    for update in range(5):
        model.set_num_updates(update)
        model(tokens(2, 9), features_only=True)
    assert len(asked) == 2


def test_other_models_are_refused():
    with pytest.raises(UserError, match="--compile is for language models, not for Linear"):
        compile_features(torch.nn.Linear(2, 2))
