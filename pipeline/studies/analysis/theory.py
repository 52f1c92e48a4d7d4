"""Figures and checks that need no model (`analyse.sh theory`), and what they draw: queries, keys, kernels."""

from argparse import Namespace
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline.errors import UserError
from pipeline.studies.analysis.analyse import THEORY, function
from pipeline.studies.analysis.record import publish
from user_dir.analysis.lognormal import lln_log_weights
from user_dir.attention.parts.moment_matching import constants

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


def matched_exponent(sigma: float, head_dim: int) -> float:
    """alpha = beta of the moment matching for sigma_q = sigma_k = sigma."""
    a, b = constants(head_dim)
    return ((sigma**4 - b) / (2 * a)) ** 0.5 / sigma


def softmax_log_weights(q: Tensor, k: Tensor) -> Tensor:
    """`ln softmax(q k^T / sqrt(d))`."""
    return (q @ k.T * q.shape[-1] ** -0.5).log_softmax(-1)


def lln_features(q: Tensor, k: Tensor, exponent: float) -> tuple[Tensor, Tensor]:
    """exp(alpha q) and exp(alpha k), in range."""
    a, b = exponent * q, exponent * k
    return (a - a.amax(-1, keepdim=True)).exp(), (b - b.max()).exp()


def lln_matrix_log(q: Tensor, k: Tensor, exponent: float) -> Tensor:
    """`ln P` of LLN attention with alpha = beta."""
    return lln_log_weights(exponent * q, exponent * k)


def _squares(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    return q.square(), k.square()


def _relu(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    return F.relu(q), F.relu(k)


def _elu(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    return F.elu(q) + 1, F.elu(k) + 1


Features = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
LINEAR: dict[str, Features] = {"linear quadratic": _squares, "linear ReLU": _relu, "1+elu": _elu}
QUADRATIC: dict[str, Callable[[Tensor], Tensor]] = {"quadratic": torch.square, "ReLU": F.relu}
HOMOGENEOUS = ("quadratic", "ReLU", "linear quadratic", "linear ReLU")
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
STYLE = {"LLN, α = β = 1": "--", "linear quadratic": "--", "linear ReLU": "--"}
