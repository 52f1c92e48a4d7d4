"""The spectral gap of attention matrices (LLN, section 3.3), exactly.

`gap = 1 - |lambda_2|` for a matrix with rows that sum to 1, whose largest eigenvalue is 1. `lambda_2^2` is
not the largest variance of `P x` over unit vectors x: that is the squared top singular value of the centred
matrix, which is at least `|lambda_2|`, and equal for symmetric doubly stochastic matrices.
"""

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from .entropy import normalized_rows, zero_rows

DENSE = 64  # up to this size all eigenvalues are as fast as the two largest
NOTHING = 1e-13


def spectral_gap(matrix: Tensor) -> Tensor:
    """`1 - |lambda_2|` of each matrix of `(..., N, N)`, rows as absolute values over their sum; `(...)`.

    Rows and columns of zeros at the end are padding and left out. About 0.02 s a matrix of 512 (ARPACK), and
    O(N) for triangular (causal) matrices, whose eigenvalues are their diagonal. A matrix with several blocks
    has an eigenvalue 1 for each, so that its gap is 0.
    """
    gaps = [1 - second_eigenvalue(one) for one in _real_parts(matrix)]
    return torch.stack(gaps).view(matrix.shape[:-2])


def second_eigenvalue(matrix: Tensor) -> Tensor:
    """`|lambda_2|` of one matrix `(N, N)`: the second largest absolute eigenvalue.

    0 for N below 2, NaN for a matrix that is not finite.
    """
    if not matrix.isfinite().all():
        return matrix.new_tensor(math.nan)
    if len(matrix) < 2:
        return matrix.new_zeros(())
    if not matrix.triu(1).any():
        return matrix.diagonal().abs().sort().values[-2]  # causal: row 0 has the eigenvalue 1
    stochastic = bool((matrix.sum(-1) - 1).abs().max() < 1e-6)
    if len(matrix) <= DENSE or not stochastic:
        # Not torch's routine: MKL's fails for rank 1 on some Intel processors.
        return matrix.new_tensor(np.sort(np.abs(np.linalg.eigvals(matrix.numpy(force=True))))[-2])
    return matrix.new_tensor(_by_arpack(matrix.numpy(force=True)))


def _by_arpack(matrix: np.ndarray) -> float:
    """The largest absolute eigenvalue of `x -> P x - 1 (mu . x)`, mu the mean row: 0, lambda_2, ..."""
    from scipy.sparse import linalg

    mean = matrix.mean(0)
    if np.abs(matrix - mean).max() < NOTHING:
        return 0.0
    centred = linalg.LinearOperator(matrix.shape, lambda x: matrix @ x - mean @ x, dtype=np.float64)
    try:
        start = np.random.default_rng(0).standard_normal(len(matrix))
        found = linalg.eigs(centred, k=2, which="LM", v0=start, return_eigenvectors=False)
    except linalg.ArpackNoConvergence:
        found = np.linalg.eigvals(matrix - mean)
    return float(np.abs(found).max())


def linear_spectral_gap(phi_q: Tensor, phi_k: Tensor) -> float:
    """The gap of linear attention `phi(q_i) . phi(k_j) / sum_j`, for features `(N, m)`; O(N m^2 + m^3).

    Its non-zero eigenvalues are those of the m x m matrix `phi(k)^T diag(1 / sum) phi(q)`.
    """
    phi_q, phi_k = phi_q.double(), phi_k.double()
    total = phi_q @ phi_k.sum(0)
    total = torch.where(total == 0, 1.0, total)  # a row of zeros stays one, as in normalized_rows
    return 1 - second_eigenvalue(phi_k.mT @ (phi_q / total[:, None])).item()


def top_singular_value(matrix: Tensor) -> Tensor:
    """s_1 of each centred matrix `P - 1 mu^T` of `(..., N, N)`, mu the mean row; `(...)`. O(N^3).

    Rows are taken as absolute values over their sum, padding is left out as in `spectral_gap`.
    `s_1 >= |lambda_2|`.
    """
    largest = [torch.linalg.matrix_norm(one - one.mean(0), 2) for one in _real_parts(matrix)]
    return torch.stack(largest).view(matrix.shape[:-2])


def _real_parts(matrices: Tensor) -> Iterator[Tensor]:
    """Each of `(..., N, N)`, normalised, without the rows and columns of zeros at its end."""
    for matrix in normalized_rows(matrices.double()).reshape(-1, *matrices.shape[-2:]):
        used = (~zero_rows(matrix) | (matrix != 0).any(-2)).nonzero()
        length = int(used.max()) + 1 if len(used) else 1
        yield matrix[:length, :length]
