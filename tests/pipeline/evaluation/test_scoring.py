"""The scorer of eval_ppl.sh against fairseq's own."""

import pytest
import torch
from fairseq.sequence_scorer import SequenceScorer

from pipeline.evaluation import scoring
from pipeline.evaluation.scoring import ChunkedScorer
from tests.helpers.lm import PAD, build_lm, dictionary, tokens


@pytest.mark.parametrize(
    ("arch", "options"),
    [
        ("transnormer_t1", {}),
        ("transformer_lm", {}),
        ("transnormer_t2", {"decoder_output_bias": "learned"}),
        ("transnormer_t1", {"adaptive_softmax_cutoff": "10,20"}),
    ],
    ids=["ours", "fairseq", "bias", "adaptive"],
)
@pytest.mark.parametrize("starts", [None, [0, 5, 3]])
def test_scores_are_fairseqs(arch, options, starts):
    model, source, target = build_lm(arch, **options), tokens(3, 20), tokens(3, 20, seed=1)
    source[1, 12:] = target[1, 12:] = PAD
    sample = {"net_input": {"src_tokens": source, "src_lengths": None}, "target": target}
    if starts:
        sample["start_indices"] = starts
    expected, found = (
        scorer.generate([model], dict(sample))
        for scorer in (SequenceScorer(dictionary(40)), ChunkedScorer(dictionary(40), 7))
    )
    assert len(found) == 3
    for (ours, *_), (theirs, *_) in zip(found, expected, strict=True):
        assert torch.equal(ours["tokens"], theirs["tokens"])
        torch.testing.assert_close(ours["positional_scores"], theirs["positional_scores"])


def test_a_compiled_model_is_asked_for_once_and_not_on_a_cpu(monkeypatch):
    compiled = []
    monkeypatch.setattr(scoring, "compile_features", compiled.append)
    model, source = build_lm("transnormer_t1"), tokens(2, 9)
    sample = {"net_input": {"src_tokens": source, "src_lengths": None}, "target": source}
    scorer = ChunkedScorer(dictionary(40), compiled=True)
    scorer.generate([model], dict(sample))
    assert not compiled
    model, meta = model.to("meta"), source.to("meta")
    sample = {"net_input": {"src_tokens": meta, "src_lengths": None}, "target": meta}
    for _ in range(2):
        with pytest.raises((RuntimeError, NotImplementedError)):  # whose tensors have no numbers
            scorer.generate([model], dict(sample))
    assert compiled == [model]
