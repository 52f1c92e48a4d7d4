"""What every encoder promises: padding on either side changes nothing, and a saved model gives the same."""

import pytest
import torch
from fairseq.models import MODEL_REGISTRY

from tests.helpers.roberta import PAD, SMALL_PARTS, build_roberta, sentences

ENCODERS = sorted(
    name
    for name, model in MODEL_REGISTRY.items()
    if name.startswith("roberta_") and hasattr(model, "default_plan")
)
# Their scale is that of the batch's real tokens in training, so that there a row depends on its neighbours.
BATCH_STATISTICS = ("roberta_lln", "roberta_lln_diag")
encoders = pytest.mark.parametrize("arch", ENCODERS)


def build(arch: str):
    return build_roberta(arch, **SMALL_PARTS)


def logits_of(model, tokens):
    """From the same state of the generator, from which dropout draws."""
    torch.manual_seed(3)
    return model(tokens)[0]


@pytest.mark.parametrize(
    ("arch", "mode"),
    [(arch, mode) for arch in ENCODERS for mode in ("eval", "train")[: 1 + (arch not in BATCH_STATISTICS)]],
)
def test_a_sentence_is_the_same_alone_and_in_a_padded_batch(arch, mode):
    model = build(arch).double()
    model.train(mode == "train")
    lengths = [150, 64, 65, 17, 1]
    alone = [logits_of(model, row[row.ne(PAD)].unsqueeze(0))[0] for row in sentences(lengths, 150)]
    for left in (False, True):
        batch = sentences(lengths, 163, left=left)
        together = logits_of(model, batch)
        for row, expected in enumerate(alone):
            torch.testing.assert_close(together[row][batch[row].ne(PAD)], expected, rtol=1e-8, atol=1e-8)


@encoders
def test_more_padding_changes_nothing_in_training(arch):
    model = build(arch).double().train()
    lengths = [70, 64, 1]
    narrow, wide = sentences(lengths, 70), sentences(lengths, 90, left=True)
    expected, got = (logits_of(model, tokens)[tokens.ne(PAD)] for tokens in (narrow, wide))
    torch.testing.assert_close(got, expected, rtol=1e-8, atol=1e-8)


@encoders
def test_padding_contributes_no_gradient(arch):
    model = build(arch).double()
    batch = sentences([70, 9], 75)
    logits = logits_of(model, batch)
    weights = torch.randn_like(logits)
    logits[batch.ne(PAD)].mul(weights[batch.ne(PAD)]).sum().backward()
    together = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    for row, kept in enumerate(batch.ne(PAD)):
        alone = logits_of(model, batch[row, kept].unsqueeze(0))
        alone[0].mul(weights[row, kept]).sum().backward()
    for name, gradient in together.items():
        torch.testing.assert_close(model.get_parameter(name).grad, gradient, rtol=1e-8, atol=1e-8)


@encoders
def test_a_saved_model_gives_the_same(arch):
    model, other = build(arch), build(arch)
    tokens = sentences([200, 31])
    model.train()(tokens)  # samples and averages other than those it was built with
    logits, _ = model.eval()(tokens)
    assert torch.equal(model(tokens)[0], logits)
    state = model.state_dict()
    other.upgrade_state_dict(state)
    other.load_state_dict(state)
    assert torch.equal(other(tokens)[0], logits)
