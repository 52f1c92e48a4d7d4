"""chunked_cross_entropy and chunked_masked_lm against fairseq's own criterions."""

from types import SimpleNamespace

import pytest
import torch
from fairseq.criterions.cross_entropy import CrossEntropyCriterion
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.criterions.masked_lm import MaskedLmLoss
from fairseq.logging import metrics

from tests.helpers.lm import PAD, build_lm, dictionary, tokens
from tests.helpers.roberta import build_roberta, sentences
from user_dir.criterions import ChunkedCrossEntropy, ChunkedMaskedLm, chunked
from user_dir.errors import UserError

TASK = SimpleNamespace(target_dictionary=dictionary(40))


def cross_entropy(task=TASK, **options):
    options = {"sentence_avg": False, "chunk_rows": 16, "ddp_backend": "pytorch_ddp", **options}
    return ChunkedCrossEntropy(chunked.ChunkedCrossEntropyConfig(**options), task)


def lm_sample(rows=3, length=20):
    source, target = tokens(rows, length), tokens(rows, length, seed=1)
    source[1, 12:] = target[1, 12:] = PAD
    return {
        "net_input": {"src_tokens": source, "src_lengths": None},
        "target": target,
        "ntokens": int(target.ne(PAD).sum()),
        "nsentences": rows,
    }


def gradients(criterion, model, sample):
    """Loss, sample size, log, and the gradient of every parameter."""
    model.zero_grad()
    loss, size, log = criterion(model, sample)
    loss.backward()
    return loss.item(), size, log, {n: p.grad.clone() for n, p in model.named_parameters() if p.requires_grad}


def agree(first, second):
    assert first[0] == pytest.approx(second[0], rel=1e-6)
    assert first[1:2] == second[1:2] and first[2].keys() == second[2].keys()
    for key, value in first[2].items():
        assert float(value) == pytest.approx(float(second[2][key]), rel=1e-6), key
    for name, grad in first[3].items():
        assert (grad - second[3][name]).abs().max() <= 1e-6 * first[2]["ntokens"], name
    whole, difference = (
        torch.cat([x.flatten() for x in found])
        for found in (first[3].values(), [first[3][n] - second[3][n] for n in first[3]])
    )
    assert difference.norm() <= 1e-6 * whole.norm()


@pytest.mark.parametrize(
    ("arch", "options"),
    [
        ("transnormer_t1", {}),
        ("transformer_lm", {}),
        ("transnormer_t2", {"no_share_decoder_input_output_embed": True}),
        ("linear_transformer_lm", {"decoder_output_bias": "learned"}),
    ],
    ids=["tied", "vanilla", "untied", "bias"],
)
@pytest.mark.parametrize(("sentence_avg", "smoothing"), [(False, 0), (True, 0), (False, 0.1)])
def test_language_model(arch, options, sentence_avg, smoothing):
    model, sample = build_lm(arch, **options), lm_sample()
    theirs = CrossEntropyCriterion(TASK, sentence_avg)
    if smoothing:
        theirs = LabelSmoothedCrossEntropyCriterion(TASK, sentence_avg, smoothing)
    ours = cross_entropy(sentence_avg=sentence_avg, label_smoothing=smoothing)
    agree(gradients(theirs, model, sample), gradients(ours, model, sample))
    each, expected = (criterion(model, sample, reduce=False)[0] for criterion in (ours, theirs))
    torch.testing.assert_close(each.flatten(), expected.flatten())
    found = []
    for criterion in (ours, theirs):
        with metrics.aggregate(new_root=True) as logged:
            criterion.reduce_metrics([criterion(model, sample)[2]] * 2)
        found.append(logged.get_smoothed_values())
    assert found[0] == pytest.approx(found[1], rel=1e-3) and "ppl" in found[0]


@pytest.mark.parametrize("untied", [False, True])
@pytest.mark.parametrize("masks", [9, 0])
def test_masked_lm(untied, masks):
    model = build_roberta("roberta_transnormer_t1", untie_weights_roberta=untied)
    source = sentences([20, 14, 17])
    target = torch.full_like(source, PAD)
    places = torch.arange(masks)
    target[places % 3, places] = source[places % 3, places]
    sample = {
        "net_input": {"src_tokens": source, "src_lengths": None},
        "target": target,
        "ntokens": 51,
        "nsentences": 3,
    }
    options = chunked.ChunkedMaskedLmConfig(tpu=False, chunk_rows=4, ddp_backend="pytorch_ddp")
    first, second = (
        gradients(kind(options, TASK), model, sample) for kind in (MaskedLmLoss, ChunkedMaskedLm)
    )
    agree(first, second)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"chunk_rows": 0}, "--chunk-rows is 0"),
        ({"ddp_backend": "fully_sharded"}, "give --criterion cross_entropy, or another --ddp-backend"),
    ],
)
def test_refusals(changes, message):
    with pytest.raises(UserError, match=message):
        cross_entropy(**changes)
    with pytest.raises(UserError, match=message.replace("cross_entropy", "masked_lm").split(", or")[0]):
        ChunkedMaskedLm(chunked.ChunkedMaskedLmConfig(**{"ddp_backend": "pytorch_ddp", **changes}), TASK)


def test_label_smoothing_that_cannot_be():
    with pytest.raises(UserError, match="--label-smoothing is 1.5; it must be from 0 to 1"):
        cross_entropy(label_smoothing=1.5)
    options = {"ddp_backend": "pytorch_ddp", "label_smoothing": 0.1}
    with pytest.raises(UserError, match="chunked_masked_lm does not smooth labels"):
        ChunkedMaskedLm(chunked.ChunkedMaskedLmConfig(**options), TASK)


def test_adaptive_softmax_is_refused():
    model = build_lm("transnormer_t1", adaptive_softmax_cutoff="10,20")
    with pytest.raises(UserError, match="train it with --criterion adaptive_loss"):
        cross_entropy()(model, lm_sample())


def test_compile_is_left_out_on_a_cpu(monkeypatch):
    """And otherwise asked for once, before the first batch."""
    compiled = []
    monkeypatch.setattr(chunked, "compile_features", compiled.append)
    model, sample = torch.nn.Linear(1, 1), {"net_input": {}, "target": torch.zeros(1)}
    monkeypatch.setattr(
        chunked.LabelSmoothedCrossEntropyCriterion, "forward", lambda *given: (0, 0, {"nll_loss": 0})
    )
    task = SimpleNamespace(target_dictionary=None)
    for device, calls in (("cpu", []), ("meta", [model])):
        criterion = cross_entropy(task, compile=True)
        for _ in range(2):
            criterion(model, {**sample, "target": sample["target"].to(device)})
        assert compiled == calls
    options = chunked.ChunkedMaskedLmConfig(tpu=False, ddp_backend="c10d", compile=True)
    assert ChunkedMaskedLm(options, TASK).to_compile
