"""The forms in packed_cost.py compute the same; its report has the figures. No times are judged."""

import numpy as np
import pytest
import torch

from benchmarks import packed_cost
from benchmarks.loss_cost import prepare
from benchmarks.models import TINY, LanguageModel
from causal_linear_attention import causal_linear_attention
from lab.errors import UserError
from tests.benchmarks.records import ENVIRONMENT

LENGTHS = np.array([3, 9, 4, 3, 5])


@pytest.fixture(scope="module")
def model():
    return LanguageModel("transnormer_t1", TINY, 16, 64, "cpu")


def test_padding_of_batches_of_similar_lengths(monkeypatch):
    monkeypatch.setattr(packed_cost, "TOKENS", 9)
    assert [list(batch) for batch in packed_cost.batches_of(LENGTHS)] == [[3, 3], [4], [5], [9]]
    monkeypatch.setattr(packed_cost, "TOKENS", 12)
    assert [list(batch) for batch in packed_cost.batches_of(LENGTHS)] == [[3, 3, 4], [5], [9]]
    found = packed_cost.padding_of(LENGTHS)
    assert found == {"sequences": 5, "mean": 4.8, "longest": 9, "padding": 1 - 24 / 26}


def test_the_first_sequences_fill_the_row(monkeypatch):
    monkeypatch.setattr(packed_cost, "TOKENS", 14)
    assert packed_cost.first_tokens(LENGTHS) == [3, 9, 2]


@pytest.mark.parametrize(("mode", "lengths"), [("eos", [4, 3, 2]), ("complete_doc", [7, 2])])
def test_lengths_are_those_of_the_text(mode, lengths, tmp_path):
    text = tmp_path / "text"
    text.write_text(" the black cat\n the mat\n\n dogs\n")
    prepare(text, 20, tmp_path)
    found = packed_cost.lengths_of(tmp_path, mode)
    assert [x for x in found if x > 1] == lengths  # an empty line ends a document


def test_padded_sequences_are_the_packed_ones():
    q, k, v = (torch.rand(1, 2, int(LENGTHS.sum()), 4) for _ in "qkv")
    cu_seqlens = torch.tensor([0, *LENGTHS]).cumsum(0, dtype=torch.int32)
    expected = causal_linear_attention(q, k, v, normalize=True, cu_seqlens=cu_seqlens)
    batch = [packed_cost.padded(x, LENGTHS.tolist()) for x in (q, k, v)]
    out = causal_linear_attention(*batch, normalize=True)
    rows = [x[:, :length] for x, length in zip(out, LENGTHS, strict=True)]
    torch.testing.assert_close(torch.cat(rows, 1).unsqueeze(0), expected)


def test_a_padded_batch_counts_its_tokens(model):
    sample = packed_cost.padded_sample(model, LENGTHS)
    pad = model.task.source_dictionary.pad()
    for tokens in (sample["net_input"]["src_tokens"], sample["target"]):
        assert torch.equal(tokens.ne(pad).sum(1), torch.from_numpy(LENGTHS))
    assert sample["ntokens"] == LENGTHS.sum()


def test_report(model, monkeypatch):
    monkeypatch.setattr("benchmarks.measuring.SAMPLE_MS", 0.01)
    monkeypatch.setattr(packed_cost, "TOKENS", 12)
    operator = {"torch": packed_cost.operator_times(LENGTHS.tolist(), "cpu", "torch", 1)}
    steps = packed_cost.step_times(model, packed_cost.batches_of(LENGTHS), 1)
    assert steps["tokens"] == 10 + 10 + 5 + 5 + 9  # five of three batches
    steps["ms"] = {"padded": 1000.0, "one row": 500.0}
    padding = packed_cost.padding_of(LENGTHS)
    records = [{"mode": m, **padding, "operator": operator, "steps": steps} for m in packed_cost.MODES]
    settings = {"data": "text", "tokens": 12, "heads": 8, "dim": 64, "architecture": "transnormer_t1"}
    text = packed_cost.markdown({"environment": ENVIRONMENT, "settings": settings, "records": records})
    assert "| lines (`--sample-break-mode eos`) | 5 | 5, 9 | 7.69% | 39 | 78 |" in text
    assert "| padded to the longest | `torch` |" in text and "commit abc" in text


def test_missing_data(monkeypatch):
    monkeypatch.setattr("sys.argv", ["packed_cost.py", "nowhere"])
    with pytest.raises(UserError, match="no data folder nowhere"):
        packed_cost.main()
