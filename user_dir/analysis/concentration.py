"""How the temperature concentrates a softmax (LLN, Theorems 3.2 and 3.4), for one row of scores."""

import math

import torch
from torch import Tensor


def softmax_entropy(scores: Tensor, tau: float) -> Tensor:
    """The entropy of `softmax(scores / tau)` in bits; `scores: (..., n)`, returns `(...)`."""
    return torch.special.entr((scores / tau).softmax(-1)).sum(-1) / math.log(2)


def entropy_slope(scores: Tensor, tau: float) -> Tensor:
    """`dH / dtau = Var_p(x) / (tau^3 ln 2)` (Theorem 3.2), p = softmax(x / tau); H in bits.

    It is positive unless all scores are equal. The last line of the paper's proof lacks the 1 / ln 2.
    """
    weights = (scores / tau).softmax(-1)
    mean = (weights * scores).sum(-1, keepdim=True)
    return (weights * (scores - mean).square()).sum(-1) / (tau**3 * math.log(2))


def softmax_variance(scores: Tensor, tau: float) -> Tensor:
    """`(1/n) sum (p_i - 1/n)^2` (Theorem 3.4): the variance of the weights, not of their logarithms.

    `(1/n)(1 - 1/n)` for tau to 0 and 0 for tau to infinity.
    """
    return (scores / tau).softmax(-1).var(-1, correction=0)


def variance_slope(scores: Tensor, tau: float) -> Tensor:
    """`-(2 / (n tau^2)) sum p_i^2 (x_i - mu)`, the derivative of `softmax_variance` (Appendix A.3)."""
    weights = (scores / tau).softmax(-1)
    mean = (weights * scores).sum(-1, keepdim=True)
    return -2 / (scores.shape[-1] * tau**2) * (weights.square() * (scores - mean)).sum(-1)
