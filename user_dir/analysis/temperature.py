"""The temperature of attention (LLN, eq. 5 and 11): one over the standard deviation of the log weights."""

import math

import torch
from torch import Tensor


def temperature(scores: Tensor, visible: Tensor | None = None) -> Tensor:
    """`1 / std` of all visible scores of each matrix (LLN, eq. 5).

    For softmax attention the scores are `q . k / sqrt(d)`. They are measured as they are: `1 / (sigma_q
    sigma_k)` holds only for independent q and k. For any other attention take `ln P`.

    Args:
        scores: `(..., N, N)`.
        visible: bool, broadcasts to `scores`; None for all.

    Returns:
        `(...)`, infinite where all scores are equal.
    """
    return 1 / _squares(scores, visible, (-2, -1)).sqrt()


def row_temperature(scores: Tensor, visible: Tensor | None = None) -> Tensor:
    """As `temperature`, with the deviations from the mean of a row, on which a softmax does not depend."""
    return 1 / _squares(scores, visible, (-1,)).sqrt()


def _squares(scores: Tensor, visible: Tensor | None, dims: tuple[int, ...]) -> Tensor:
    """The mean square over all visible scores, less their mean over `dims`; `(...)`."""
    visible = torch.ones_like(scores, dtype=torch.bool) if visible is None else visible.expand_as(scores)
    scores = scores.double().masked_fill(~visible, 0.0)
    mean = scores.sum(dims, keepdim=True) / visible.sum(dims, keepdim=True).clamp(min=1)
    squares = (scores - mean).masked_fill(~visible, 0.0).square()
    return squares.sum((-2, -1)) / visible.sum((-2, -1))


def lln_temperature(alpha: float, beta: float, sigma_q: float, sigma_k: float, a: float, b: float) -> float:
    """`1 / sqrt(a s^2 + b)`, `s^2 = alpha^2 sigma_q^2 + beta^2 sigma_k^2` (LLN, eq. 11).

    With matched alpha and beta it is `1 / (sigma_q sigma_k)`. Not a number for `s^2 <= -b / a`, where the
    line of the moment matching gives no variance: alpha = beta = sigma = 1 is such a case.
    """
    variance = a * (alpha**2 * sigma_q**2 + beta**2 * sigma_k**2) + b
    return variance**-0.5 if variance > 0 else math.nan
