"""Rows of an attention matrix as distributions, and their entropy (LLN, eq. 7).

Signed matrices (NormAttention, Nyströmformer) are not distributions. Measures take the absolute values of a
row over their sum, which changes nothing where a matrix is stochastic; rows of zeros are left out.
"""

import math

import torch
from torch import Tensor

from ..errors import check_choice

ROWS = ("abs", "sum", "raw")
LEAST_SUM = 1e-4  # of a row, in the form of TransNormer's authors


def normalized_rows(matrix: Tensor, rows: str = "abs") -> Tensor:
    """`matrix: (..., N, N)` with rows as `rows` says; rows of zeros stay.

    Args:
        matrix: attention matrices.
        rows: "abs", absolute values over their sum; "sum", the authors' plots: entries over their signed sum,
            at least 1e-4 if no entry is negative; "raw", nothing.

    Raises:
        UserError: for another form.
    """
    check_choice("the form of rows is", rows, ROWS)
    if rows == "raw":
        return matrix
    if rows == "abs":
        matrix = matrix.abs()
    total = matrix.sum(-1, keepdim=True)
    if rows == "sum":
        signed = (matrix < 0).any()
        return matrix / (total if signed else total.clamp(min=LEAST_SUM))
    return matrix / torch.where(total > 0, total, 1.0)


def zero_rows(matrix: Tensor) -> Tensor:
    """True where a row of `matrix: (..., N, N)` is zero, padding among them; `(..., N)`."""
    return (matrix == 0).all(-1)


def negative_share(matrix: Tensor) -> Tensor:
    """The part of the absolute mass of `matrix: (..., N, N)` that is negative; `(...)`."""
    total = matrix.abs().sum((-2, -1))
    return matrix.clamp(max=0).abs().sum((-2, -1)) / torch.where(total > 0, total, 1.0)


def row_entropies(matrix: Tensor) -> Tensor:
    """The entropy of each row of `matrix: (..., N, N)` in bits, 0 for rows of zeros; `(..., N)`."""
    return torch.special.entr(normalized_rows(matrix.double())).sum(-1) / math.log(2)


def entropy(matrix: Tensor) -> Tensor:
    """`-(1/N) sum_ij P_ij log2 P_ij` in bits (LLN, eq. 7), 0 log 0 being 0; rows of zeros are left out.

    Args:
        matrix: `(..., N, N)`.

    Returns:
        `(...)`: a number per matrix, from 0 (each row a single position) to log2 N (uniform). O(N^2).
    """
    return _mean_over(row_entropies(matrix), ~zero_rows(matrix))


def relative_entropy(matrix: Tensor) -> Tensor:
    """The mean of `H_i / log2(i + 1)` over the rows i from 1 on of causal matrices `(..., N, N)`; `(...)`.

    1 is uniform attention to all visible positions, whatever the length.
    """
    most = torch.log2(torch.arange(1, matrix.shape[-1] + 1, device=matrix.device, dtype=torch.float64))
    used = ~zero_rows(matrix) & (most > 0)
    return _mean_over(row_entropies(matrix) / most.clamp(min=1), used)


def _mean_over(values: Tensor, used: Tensor) -> Tensor:
    return (values * used).sum(-1) / used.sum(-1).clamp(min=1)
