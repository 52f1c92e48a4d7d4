"""Invalid calls of the operator and of attentions raise a ValueError that says what is wrong."""

import numpy as np
import pytest
import torch

from causal_linear_attention import (
    causal_linear_attention,
    causal_linear_attention_step,
    linear_attention,
)
from user_dir.attention import SelfAttention, build_attention
from user_dir.attention.lln import lln_attention

X = torch.randn(1, 2, 5, 4)
NO_TENSORS = {
    "list": [1.0],
    "None": None,
    "NumPy": np.zeros((1, 2, 5, 4)),
    "sparse": X.to_sparse(),
    "integers": X.long(),
    "rank": X[0],
}
OPERATORS = {
    "causal": causal_linear_attention,
    "full": linear_attention,
    "lln": lambda q, k, v: lln_attention(q, k, v, alpha=1.0, beta=1.0, causal=True),
    "step": lambda q, k, v: causal_linear_attention_step(q, k, v, torch.zeros(1, 2, 4, 4)),
}


@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("bad", NO_TENSORS)
@pytest.mark.parametrize("name", OPERATORS)
def test_operators_refuse_what_is_no_tensor_of_theirs(name, bad, place):
    inputs = [X[:, :, 0] if name == "step" else X] * 3
    inputs[place] = NO_TENSORS[bad]
    with pytest.raises(ValueError, match=r"^[qkv] (is of type|has|is on)"):
        OPERATORS[name](*inputs)


@pytest.mark.parametrize("state", [None, [1], np.zeros((1, 2, 4, 4)), torch.zeros(1, 2, 4, 3)])
def test_step_without_a_state_of_its_own(state):
    q = X[:, :, 0]
    with pytest.raises(ValueError, match="^state (is of type|has)"):
        causal_linear_attention_step(q, q, q, state)


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_numbers_that_are_none(value):
    for operator in (causal_linear_attention, linear_attention):
        with pytest.raises(ValueError, match=f"^eps is {value}"):
            operator(X, X, X, normalize=True, eps=value)
    for scales in ({"alpha": value, "beta": 1.0}, {"alpha": 1.0, "beta": value}):
        with pytest.raises(ValueError, match=f"is {value}; expected a finite number"):
            lln_attention(X, X, X, **scales, causal=False)


QUERIES = {
    "list": [1.0],
    "None": None,
    "NumPy": np.zeros((5, 3, 8)),
    "sparse": torch.zeros(5, 3, 8).to_sparse(),
    "integers": torch.zeros(5, 3, 8, dtype=torch.long),
    "rank": torch.zeros(3, 8),
    "dtype": torch.zeros(5, 3, 8, dtype=torch.float64),
    "width": torch.zeros(5, 3, 7),
}
MASKS = {
    "one row": torch.zeros(1, 5, dtype=torch.bool),
    "length": torch.zeros(3, 4, dtype=torch.bool),
    "list": [[False] * 5] * 3,
    "numbers": torch.zeros(3, 5),
    "device": torch.zeros(3, 5, dtype=torch.bool, device="meta"),
}


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", ["softmax", "norm", "diag", "lln"])
def test_attentions_refuse_queries_and_masks(name, causal):
    attention = build_attention(name, 8, 2, causal=causal).eval()
    for query in QUERIES.values():
        with pytest.raises(ValueError, match="^query (is of type|has)"):
            attention(query)
    query = torch.randn(5, 3, 8)
    for mask in MASKS.values():
        with pytest.raises(ValueError, match="^padding_mask (is of type|has|is on)"):
            attention(query, key_padding_mask=mask)
    out, _ = attention(query, key_padding_mask=torch.zeros(3, 5, dtype=torch.bool))
    assert out.shape == query.shape


def test_an_attention_that_cannot_decode_yet_says_what_it_lacks():
    """One of a user's own, of which only `attend` is written."""
    mine = SelfAttention(8, 2, causal=True, dropout=0.0, backend="auto", options=None)
    with pytest.raises(NotImplementedError, match="SelfAttention has no first_state"):
        mine(torch.randn(1, 1, 8), incremental_state={})
