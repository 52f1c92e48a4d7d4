"""The explicit attention matrix: with it, every layer's output can be computed from its values."""

import math

import pytest
import torch
from fairseq.modules import MultiheadAttention

from tests.helpers.mechanisms import MECHANISMS, all_forms, build, forms_of, ragged
from user_dir.analysis import attention_matrix, lln_diag_parts, toeplitz_matrices
from user_dir.attention import ParallelAttention
from user_dir.attention.decaying import DecayingAttention
from user_dir.errors import UserError

LENGTH = 45
# Transformer-LS normalises its pooled values.
linear_forms = forms_of(without=("transformer_ls", "transformer_ls-16-2"))


def output_from_matrix(module, key, x, padding):
    """The output of `module` from its matrix and its values."""
    matrix = attention_matrix(module, x, padding)
    name = MECHANISMS[key].name
    if name in ("flash", "flash_quad"):
        return module._gated(x, matrix[:, 0] @ module._parts(x, padding)[0])
    if name == "tnn":
        values = module._values(x, padding)
        matrices = toeplitz_matrices(module, len(x))
        torch.testing.assert_close(matrix[0, 0], matrices.abs().mean(0))
        return module._gated(x, torch.einsum("eij,bje->bie", matrices, values))
    if name == "reformer":
        mixed = matrix @ module.heads(module.value(x))
        return module.out_proj(mixed.permute(2, 0, 1, 3).flatten(2))
    if isinstance(module, DecayingAttention):
        at = module.at(torch.arange(len(x)), x)
        *_, values, gate = module.inputs(x, at)
        return module.out_proj(module.finish(matrix @ values, gate, at))
    v = module.heads(module.v_proj(x))
    mixed = matrix @ v
    if name == "longformer":
        mixed[:, :, 0] = (matrix @ module.heads(module.v_proj_global(x)))[:, :, 0]
    if name == "lln_diag":
        lln, diag, r, p = lln_diag_parts(module, x, padding)
        mixed = r * (lln @ v) + p * (diag @ v)
    if name == "linformer" and module.options.projection != "heads":
        bias = module.v_proj.bias.unflatten(0, (module.num_heads, -1))[:, None]
        mixed = matrix @ (v - bias) + bias
    return module._join(mixed, x)


@linear_forms
@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
def test_matrix_times_values_is_the_output(key, causal, padded):
    module = build(key, causal, torch.float64)
    with torch.no_grad():
        for parameter in module.parameters():  # biases and learned mixtures leave their initial values
            parameter.add_(0.1 * torch.randn_like(parameter))
    _, mask = ragged(LENGTH, 3)
    x = torch.randn(LENGTH, 3, 12, dtype=torch.float64)
    padding = mask if padded else None
    out = output_from_matrix(module, key, x, padding)
    expected = module(x, key_padding_mask=padding)[0]
    real = ~mask.t() if padded else torch.ones_like(mask.t())
    torch.testing.assert_close(out[real], expected[real], rtol=1e-8, atol=1e-8)


@all_forms
def test_zeros_of_causality_and_padding_and_rows_alone(key, causal):
    module = build(key, causal)
    sizes, mask = ragged(LENGTH, 3)
    x = torch.randn(LENGTH, 3, 12)
    matrix = attention_matrix(module, x, mask)
    assert matrix.dtype == torch.float64 and matrix.shape[2:] == (LENGTH, LENGTH)
    if causal:
        assert (matrix.triu(1) == 0).all()
    for row, size in enumerate(sizes):
        assert (matrix[row, :, size:] == 0).all() and (matrix[row, :, :, size:] == 0).all()
        alone = attention_matrix(module, x[:size, row : row + 1])[0]
        torch.testing.assert_close(matrix[row, :, :size, :size], alone)


@pytest.mark.parametrize(
    "key", ["softmax", "elu", "diag-softmax", "lln", "lln_diag", "performer", "bigbird", "informer"]
)
def test_rows_sum_to_one(key):
    matrix = attention_matrix(build(key, False), torch.randn(LENGTH, 2, 12))
    # Performer and 1+elu add an epsilon to their sums.
    torch.testing.assert_close(matrix.sum(-1), torch.ones(2, 2, LENGTH).double(), rtol=1e-4, atol=1e-4)


def test_softmax_is_the_textbook_formula_also_in_fairseq():
    module = build("softmax", True)
    theirs = MultiheadAttention(12, 2, self_attention=True).eval()
    theirs.load_state_dict(module.state_dict())
    x = torch.randn(9, 2, 12)
    q, k = (f(x).unflatten(2, (2, 6)).permute(1, 2, 0, 3) for f in (module.q_proj, module.k_proj))
    scores = (q @ k.mT / math.sqrt(6)).masked_fill(torch.ones(9, 9).triu(1).bool(), -torch.inf)
    expected = scores.double().softmax(-1)
    torch.testing.assert_close(attention_matrix(module, x), expected, rtol=1e-5, atol=1e-6)
    found = attention_matrix(theirs, x, causal=True)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    padding = torch.tensor([[False] * 9, [False] * 6 + [True] * 3])
    _, weights = theirs(x, x, x, key_padding_mask=padding, need_weights=True)  # the mean over heads
    found = attention_matrix(theirs, x, padding).mean(1)
    torch.testing.assert_close(found[0], weights[0].double(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found[1, :6], weights[1, :6].double(), rtol=1e-5, atol=1e-6)


def test_blocks_are_on_the_diagonal():
    module = build("diag-none-16", False)
    matrix = attention_matrix(module, torch.randn(40, 1, 12))
    block = torch.arange(40) // 16
    assert (matrix[..., block[:, None] != block] == 0).all()
    assert (matrix != 0).any()


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_transformer_ls_without_its_layer_norm_on_pooled_values(causal):
    """The effective matrix is of the layer without normalised pooled values."""
    module = build("transformer_ls-16-2", causal, torch.float64)
    x = torch.randn(LENGTH, 2, 12, dtype=torch.float64)
    matrix = attention_matrix(module, x)
    torch.testing.assert_close(matrix.sum(-1), torch.ones_like(matrix[..., 0]))
    assert (matrix > 0).any(-2).all()


def test_module_is_left_as_it_was():
    module = build("lln", False).train()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    attention_matrix(module, torch.randn(9, 2, 12))
    assert module.training
    for name, value in module.state_dict().items():
        assert value.dtype == before[name].dtype and torch.equal(value, before[name])


def test_parallel_attentions_have_no_single_matrix():
    module = ParallelAttention([build("softmax", False), build("elu", False)])
    with pytest.raises(UserError, match="give one attention, not several in parallel"):
        attention_matrix(module, torch.randn(5, 1, 12))
