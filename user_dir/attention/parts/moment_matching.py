"""The constants of LLN attention, by moment matching (Nahshan et al. 2024, appendix A.7).

The logarithms of softmax attention's entries have a variance near sigma_q^2 sigma_k^2. Those of LLN attention
with exponents alpha q, beta k have a variance that grows almost linearly with the exponents' own,

    var(log P) = a s~^2 + b,   s~^2 = alpha^2 sigma_q^2 + beta^2 sigma_k^2,

so that a and b, once measured, tell which alpha and beta give LLN attention softmax's variance.
"""

from functools import cache

import torch
from torch import Tensor

# The authors' fit, for heads of width 64.
AUTHORS_HEAD_DIM = 64
AUTHORS_CONSTANTS = (0.14855178144710912, -0.35487039130661086)


def lln_log_variance(a: Tensor, b: Tensor) -> float:
    """The variance of `log P` over all entries, P being `exp(a) exp(b)^T` with each row divided by its sum.

    `a, b: (N, d)` are the exponents alpha q and beta k; their exponentials must be within the type's range.
    """
    return (a.exp() @ b.exp().T).log().log_softmax(-1).var().item()


def fit_moment_matching(
    head_dim: int,
    *,
    length: int = 1024,
    variances: tuple[float, float] = (0.25, 9.0),
    points: int = 36,
    seed: int = 0,
) -> tuple[float, float]:
    """The line `a s~^2 + b` through the measured variances of LLN attention's logarithms.

    For each of `points` variances in equal steps, `length` queries and keys are drawn, Gaussian with that
    variance; they are the exponents, so s~^2 is twice the variance, and `lln_log_variance` is measured. The
    line is the least-squares fit. By default the exponents' standard deviation runs from 0.5 to 3, which
    matches softmax attention with sigma_q sigma_k up to 1.5 where d = 64.

    Args:
        head_dim: head width d.
        length: rows and columns of the attention matrix; time O(points length^2 d).
        variances: the least and the largest variance of the exponents.
        points: how many variances, at least 2.
        seed: of the draws, which leave torch's global generator alone.

    Returns:
        a and b.
    """
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.linspace(*variances, points, dtype=torch.float64, device="cpu")
    measured = []
    for variance in inputs.tolist():
        q, k = (
            torch.randn(length, head_dim, generator=generator, dtype=torch.float32, device="cpu")
            for _ in range(2)
        )
        measured.append(lln_log_variance(q * variance**0.5, k * variance**0.5))
    x, y = 2 * inputs, torch.tensor(measured, dtype=torch.float64, device="cpu")
    a = (torch.cov(torch.stack([x, y]))[0, 1] / x.var()).item()
    return a, (y.mean() - a * x.mean()).item()


@cache
def constants(head_dim: int) -> tuple[float, float]:
    """a and b for a head width: the authors' for 64, the fit with its default settings for any other."""
    return AUTHORS_CONSTANTS if head_dim == AUTHORS_HEAD_DIM else fit_moment_matching(head_dim)
