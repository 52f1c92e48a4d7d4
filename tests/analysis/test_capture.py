"""The inputs of a model's attentions, recorded in one forward pass."""

import pytest
import torch
from torch import nn

from tests.helpers.lm import PAD, build_lm, tokens
from tests.helpers.roberta import build_roberta
from user_dir.analysis import attention_matrix, record_inputs
from user_dir.errors import UserError


def test_inputs_of_parallel_layers_and_padding():
    model = build_roberta("roberta_softmax", encoder_attention="diag+norm,lln")
    batch = tokens(2, 12)
    batch[1, 8:] = PAD
    found = record_inputs(model, lambda: model(batch))
    assert [one.name for one in found] == ["layer0.0", "layer0.1", "layer1"]
    assert all(one.x.shape == (12, 2, 24) and not one.causal for one in found)
    assert torch.equal(found[0].padding_mask, batch == PAD)
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_fairseqs_own_decoder_is_causal():
    model = build_lm("transformer_lm")
    found = record_inputs(model, lambda: model(tokens(2, 7)))
    assert [one.name for one in found] == ["layer0", "layer1"]
    matrix = attention_matrix(found[1].module, found[1].x, found[1].padding_mask, causal=found[1].causal)
    assert (matrix.triu(1) == 0).all()
    torch.testing.assert_close(matrix.sum(-1), torch.ones(2, 2, 7).double())


def test_model_without_attention():
    with pytest.raises(UserError, match=r"\(Linear\) has no attention"):
        record_inputs(nn.Linear(2, 2), lambda: None)
