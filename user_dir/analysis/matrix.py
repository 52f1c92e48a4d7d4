"""The explicit attention matrix of any mechanism: `out_i = sum_j P_ij v_j`."""

from collections.abc import Callable
from copy import deepcopy
from functools import singledispatch

import torch
from torch import Tensor, nn

from ..attention.base import SelfAttention
from ..errors import UserError


@torch.no_grad()
def attention_matrix(
    module: nn.Module, x: Tensor, padding_mask: Tensor | None = None, *, causal: bool | None = None
) -> Tensor:
    """The matrix P with which `module` mixes its values, before RMSNorm, gate and output map.

    `P @ v` is what the mechanism's `attend` returns for values `v`, for every mechanism linear in v. P is
    computed from a float64 copy of the module in evaluation mode: no dropout, LLN with its running standard
    deviations, fixed draws of Performer, Informer and Skyformer. Where P is not such a matrix:

    * Transformer-LS normalises its pooled values, so P is the effective matrix without that LayerNorm;
    * TNN has a matrix for each channel, of which P is the mean absolute value (see `toeplitz_matrices`);
    * LLN+Diag with learned combination has one for each channel; P takes the means of r and p (see
      `lln_diag_parts`);
    * the first row of Longformer weighs values of its own map;
    * Linformer's shared and separate projections lie before the bias of the values, which P adds unweighted;
    * FLASH, FLASH-quad and TNN have one head.

    Time and memory O(N^2) for a matrix and N / d calls of `attend`, d the head width: O(N^2 d) for linear
    mechanisms, O(N^3) for softmax.

    Args:
        module: an attention of this project, or fairseq's `MultiheadAttention`.
        x: `(N, B, D)`, the input of the module.
        padding_mask: bool `(B, N)`, True at padding, which is at the end of a row and gets zeros.
        causal: for fairseq's attention only, which does not know it: a position sees no later ones.

    Returns:
        `(B, H, N, N)`, float64.

    Raises:
        UserError: for a module that is not an attention, or several in parallel, which have a matrix each.
    """
    matrix = explicit(deepcopy(module).double().eval(), x.double(), padding_mask, bool(causal))
    if padding_mask is None:
        return matrix
    hidden = padding_mask[:, None, :, None]
    return matrix.masked_fill(hidden | hidden.mT, 0.0)


@singledispatch
def explicit(module: nn.Module, x: Tensor, padding_mask: Tensor | None, causal: bool) -> Tensor:
    """`attention_matrix` of a float64 module in evaluation mode; `forms.py` has forms other than `attend`."""
    raise UserError(
        f"{type(module).__name__} has no attention matrix; give one attention, not several in parallel"
    )


@explicit.register
def _(module: SelfAttention, x: Tensor, padding_mask: Tensor | None, causal: bool) -> Tensor:
    q, k = module.heads(module.q_proj(x)), module.heads(module.k_proj(x))
    return by_columns(lambda values: module.attend(q, k, values, padding_mask), q)


def by_columns(mix: Callable[[Tensor], Tensor], like: Tensor) -> Tensor:
    """The matrix of the linear map `mix` of values shaped as `like: (B, H, N, d)`; `(B, H, N, N)`.

    `mix` gets d columns of the identity at a time, the last filled up with zeros: some mechanisms need
    values exactly d wide.
    """
    length, width = like.shape[2:]
    columns = []
    for start in range(0, length, width):
        count = min(width, length - start)
        values = torch.zeros_like(like)
        place = torch.arange(count, device=like.device)
        values[:, :, start + place, place] = 1
        columns.append(mix(values)[..., :count])
    return torch.cat(columns, -1) if columns else like.new_zeros(*like.shape[:2], 0, 0)
