"""Gradients: their relative spread, and their bounds (TransNormer, section 3.1, Appendices B to D).

With scores s_ij of query i, `P_ij = f(s_ij) / sum_k f(s_ik)`, `O = P V` and `g_ij = dL/dO_i . v_j`, the
gradients dL/ds_ij have the closed forms below. n keys, `c1 = max |dL/dO_i|`, `c2 = max |v_j|`.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def relative_deviation(values: Sequence[float]) -> float:
    """Standard deviation over mean, of the population (TransNormer's Table 2 of gradient norms).

    Raises ValueError for no values or a mean of 0.
    """
    found = torch.tensor(list(values), dtype=torch.float64)
    if not len(found) or found.mean() == 0:
        raise ValueError("the relative deviation needs values with a mean other than 0")
    return (found.std(correction=0) / found.mean()).item()


def softmax_score_gradients(weights: Tensor, products: Tensor) -> Tensor:
    """dL/ds of softmax attention, `P_ij (g_ij - sum_k P_ik g_ik)`, for `P, g: (..., N, N)`."""
    return weights * _centred(weights, products)


def linear_score_gradients(weights: Tensor, products: Tensor, total: Tensor) -> Tensor:
    """dL/ds of weights divided by their sum `total: (..., N, 1)`: `(g_ij - sum_k P_ik g_ik) / total`."""
    return _centred(weights, products) / total


def _centred(weights: Tensor, products: Tensor) -> Tensor:
    return products - (weights * products).sum(-1, keepdim=True)


def rms_norm_inside(x: Tensor, eps: float) -> Tensor:
    """RMSNorm with its epsilon inside the root (TransNormer, Definition D.1)."""
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt()


def rms_norm_beside(x: Tensor, eps: float) -> Tensor:
    """RMSNorm with its epsilon beside the root, as in this project and the authors' code."""
    return x / (torch.linalg.vector_norm(x, dim=-1, keepdim=True) * x.shape[-1] ** -0.5 + eps)


def softmax_bound(c1: float, c2: float) -> float:
    """The largest |dL/ds| of softmax attention, `c1 c2 / 2`.

    Tight for any n: a row with two equal scores reaches it. The paper's `sqrt(n) c1 c2 / 4` (eq. 59) is
    smaller, and false, for n = 2 and 3.
    """
    return c1 * c2 / 2


def paper_softmax_bound(c1: float, c2: float, keys: int) -> float:
    """`sqrt(n) c1 c2 / 4` (eq. 59), which holds from n = 4 on."""
    return math.sqrt(keys) * c1 * c2 / 4


def norm_bound(c1: float, c2: float, eps: float, inside: bool) -> float:
    """The tight form: `c1 c2 / sqrt(eps)`, or `c1 c2 / eps` with the epsilon beside the root."""
    return c1 * c2 / (math.sqrt(eps) if inside else eps)
