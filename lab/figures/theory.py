"""Figures and checks that need no model (`figures theory`), and what they draw: queries, keys, kernels."""

import math
from argparse import Namespace
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from lab.errors import UserError
from lab.figures.analyse import THEORY, function
from lab.figures.record import publish
from user_dir.analysis.lognormal import lln_log_weights

SMALLEST_HEAD, SMALLEST_LENGTH = 2, 32


def run_theory(options: Namespace) -> None:
    """All figures, or those asked for."""
    names = options.only.split(",") if options.only else list(THEORY)
    if unknown := [name for name in names if name not in THEORY]:
        raise UserError(f"there is no figure {unknown[0]!r}; choose some of {', '.join(THEORY)}")
    if options.head_dim < SMALLEST_HEAD or options.length < SMALLEST_LENGTH:
        raise UserError(
            f"--head-dim must be {SMALLEST_HEAD} or more and --length {SMALLEST_LENGTH} or more; they are "
            f"{options.head_dim} and {options.length}"
        )
    for name in names:
        settings = {"length": options.length, "head_dim": options.head_dim, "seed": 0}
        make = function(THEORY[name])
        publish(options, name, settings, lambda make=make, s=settings: make(s["length"], s["head_dim"]))


def queries_and_keys(length: int, head_dim: int, seed: int) -> tuple[Tensor, Tensor]:
    """Standard normal `(N, d)` each, float64."""
    generator = torch.Generator().manual_seed(seed)
    q, k = (torch.randn(length, head_dim, generator=generator, dtype=torch.float64) for _ in range(2))
    return q, k


def matched_exponent(sigma: float, a: float, b: float) -> float:
    """alpha = beta of the moment matching by the line a, b for sigma_q = sigma_k = sigma."""
    return math.sqrt((sigma**4 - b) / (2 * a)) / sigma


def softmax_log_weights(q: Tensor, k: Tensor) -> Tensor:
    """`ln softmax(q k^T / sqrt(d))`."""
    return (q @ k.T * q.shape[-1] ** -0.5).log_softmax(-1)


def lln_matrix_log(q: Tensor, k: Tensor, exponent: float) -> Tensor:
    """`ln P` of LLN attention with alpha = beta."""
    return lln_log_weights(exponent * q, exponent * k)


Map = Callable[[Tensor], Tensor]
"""Entry by entry: of q and k each, or of their scores."""
LINEAR: dict[str, Map] = {
    "linear quadratic": torch.square,
    "linear ReLU": F.relu,
    "1+elu": lambda x: F.elu(x) + 1,
}
QUADRATIC: dict[str, Map] = {"quadratic": torch.square, "ReLU": F.relu}
METHOD = {
    "softmax": "softmax",
    "LLN, matched": "lln",
    "LLN, α = β = 1": "lln",
    "quadratic": "quadratic",
    "ReLU": "relu",
    "linear quadratic": "quadratic",
    "linear ReLU": "relu",
    "1+elu": "elu",
}
