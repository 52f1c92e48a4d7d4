"""Temperature, entropy and spectral gap without a model (LLN, Theorems 3.2 to 3.4, Fig. 2)."""

import math
from itertools import pairwise

import torch
from torch import Tensor

from pipeline.studies.analysis.record import Part, Record, banded, check, curve, lines, of_parts
from pipeline.studies.analysis.theory import (
    LINEAR,
    METHOD,
    QUADRATIC,
    lln_matrix_log,
    matched_exponent,
    queries_and_keys,
    softmax_log_weights,
)
from user_dir.analysis import (
    entropy,
    linear_spectral_gap,
    normalized_rows,
    spectral_gap,
    top_singular_value,
)
from user_dir.analysis.concentration import (
    entropy_slope,
    softmax_entropy,
    softmax_variance,
    variance_slope,
)
from user_dir.attention.parts.moment_matching import constants

SIGMAS = torch.logspace(math.log10(0.3), math.log10(3), 12).tolist()
SEEDS = range(5)
HOMOGENEOUS = ("quadratic", "ReLU", "linear quadratic", "linear ReLU")
STYLE = {"LLN, α = β = 1": "--", "linear quadratic": "--", "linear ReLU": "--"}
SHORT = 256  # of the matrices whose singular values are taken


def theorems(length: int, head_dim: int) -> Record:
    """Theorems 3.2 and 3.4 on a row of scores, 3.3 on matrices, and biased concentration."""
    scores = 2 * torch.randn(64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    taus = torch.logspace(-1, 1.5, 30, dtype=torch.float64).tolist()
    parts = [*_slopes(scores, taus), *_eigenvalues(min(length, SHORT), head_dim)]
    return {
        "title": "Temperature",
        "columns": 2,
        **of_parts(parts),
        "note": "Above: one row of 64 Gaussian scores of standard deviation 2; crosses are finite "
        "differences. The derivative printed in the paper lacks 1/ln 2. Below, left: the second eigenvalue "
        "is not the largest variance, which is the squared top singular value of the centred matrix. "
        "Below, right: with a share 1 - e of all attention on one token the second eigenvalue is e times "
        "that before, at the same temperature.",
    }


def _slopes(scores: Tensor, taus: list[float]) -> list[Part]:
    def differences(function) -> list[float]:
        return [
            ((function(scores, tau * (1 + 1e-5)) - function(scores, tau * (1 - 1e-5))) / (2e-5 * tau)).item()
            for tau in taus
        ]

    bits = [softmax_entropy(scores, tau).item() for tau in taus]
    slope, numeric = [entropy_slope(scores, tau).item() for tau in taus], differences(softmax_entropy)
    error = max(abs(a / b - 1) for a, b in zip(slope, numeric, strict=True))
    of_weights = [softmax_variance(scores, tau).item() for tau in taus]
    falls, fallen = [variance_slope(scores, tau).item() for tau in taus], differences(softmax_variance)
    variance_error = max(abs(a - b) for a, b in zip(falls, fallen, strict=True)) / max(map(abs, falls))
    first = lines(
        "Theorem 3.2: entropy",
        "temperature τ",
        "bits, bits per unit of τ",
        [
            curve("H", taus, bits, "softmax"),
            curve("dH/dτ", taus, slope, shade=0.5),
            curve("as printed", taus, [x * math.log(2) for x in slope], style="--"),
            curve("", taus[::3], numeric[::3], shade=0.5, style="x"),
        ],
        "log",
    )
    second = lines(
        "Theorem 3.4: variance of the weights",
        "temperature τ",
        "variance",
        [curve("σ²", taus, of_weights, "softmax")],
        "log",
    )
    n = len(scores)
    limit = (1 - 1 / n) / n
    return [
        (
            first,
            [
                check(
                    "Theorem 3.2: dH/dτ = Var(x)/(τ³ ln 2)",
                    "finite differences",
                    f"within {error:.0e}",
                    error < 1e-4,
                ),
                check(
                    "H grows with τ",
                    "at each of 30 values",
                    "it does",
                    all(b > a for a, b in pairwise(bits)),
                ),
            ],
        ),
        (
            second,
            [
                check(
                    "Theorem 3.4: derivative of σ²",
                    "finite differences",
                    f"within {variance_error:.0e}",
                    variance_error < 1e-4,
                ),
                check(
                    "σ² at τ → 0 and → ∞",
                    f"{limit:.5f} and 0",
                    f"{softmax_variance(scores, 1e-3).item():.5f} and "
                    f"{softmax_variance(scores, 1e6).item():.0e}",
                    abs(softmax_variance(scores, 1e-3).item() - limit) < 1e-9,
                ),
            ],
        ),
    ]


def _eigenvalues(length: int, head_dim: int) -> list[Part]:
    q, k = queries_and_keys(length, head_dim, 0)
    ratios: dict[str, list[float]] = {"softmax": [], "LLN, matched": []}
    for sigma in SIGMAS:
        logs = {
            "softmax": softmax_log_weights(sigma * q, sigma * k),
            "LLN, matched": lln_matrix_log(
                sigma * q, sigma * k, matched_exponent(sigma, *constants(head_dim))
            ),
        }
        for name, log in logs.items():
            matrix = log.exp()
            second = 1 - spectral_gap(matrix).item()
            ratios[name].append(top_singular_value(matrix).item() / second)
    least = min(min(found) for found in ratios.values())
    matrix = softmax_log_weights(q, k).exp()
    shares = torch.linspace(0, 1, 11, dtype=torch.float64).tolist()
    sink = torch.zeros_like(matrix)
    sink[:, 0] = 1
    gaps = [spectral_gap((1 - e) * sink + e * matrix).item() for e in shares]
    worst = max(abs(1 - gap - e * (1 - gaps[-1])) for gap, e in zip(gaps, shares, strict=True))
    first = lines(
        "Theorem 3.3: s₁ over |λ₂|",
        "standard deviation σ of q and k",
        "ratio",
        [curve(name, SIGMAS, found, METHOD[name]) for name, found in ratios.items()],
    )
    second = lines(
        "Biased concentration",
        "share e of unbiased attention",
        "spectral gap γ",
        [curve("softmax, σ = 1", shares, gaps, "softmax", style="o-")],
    )
    return [
        (
            first,
            [
                check(
                    "Theorem 3.3: s₁ = |λ₂|",
                    "ratio 1; at least 1 in general",
                    f"{least:.2f} at least",
                    least < 1.01,
                )
            ],
        ),
        (second, [check("γ = 1 - e |λ₂|", "exactly", f"within {worst:.0e}", worst < 1e-8)]),
    ]


def kernels(length: int, head_dim: int) -> Record:
    """Fig. 2: entropy and spectral gap of eight kernels against the temperature 1 / sigma^2."""
    bits = {name: torch.zeros(len(SEEDS), len(SIGMAS)) for name in METHOD}
    gaps = {name: torch.zeros(len(SEEDS), len(SIGMAS)) for name in METHOD}
    for seed in SEEDS:
        q, k = queries_and_keys(length, head_dim, seed)
        for i, sigma in enumerate(SIGMAS):
            for name, (h, gap) in _measured(sigma * q, sigma * k, sigma).items():
                bits[name][seed, i], gaps[name][seed, i] = h, gap
    taus = [sigma**-2 for sigma in SIGMAS]
    panels = [
        lines(
            title,
            "temperature τ = 1/σ²",
            unit,
            [banded(name, taus, found[name], METHOD[name], style=STYLE.get(name, "-")) for name in METHOD],
            "log",
        )
        for title, unit, found in (("Entropy", "H, bits", bits), ("Spectral gap", "γ", gaps))
    ]
    return {
        "title": "Entropy and spectral gap of kernels",
        "panels": panels,
        "note": f"Gaussian q and k of standard deviation σ, N = {length}, d = {head_dim}; mean and range of "
        f"{len(SEEDS)} draws. Homogeneous kernels (quadratic, ReLU and their linear forms) do not depend on "
        "σ at all. Moment matching gives LLN softmax's temperature, but from σ = 1 on a more concentrated "
        "attention.",
        "checks": _kernel_checks(bits, gaps, length),
    }


def _measured(q: Tensor, k: Tensor, sigma: float) -> dict[str, tuple[float, float]]:
    found = {}
    scores = q @ k.T * q.shape[-1] ** -0.5
    for name, weigh in {"softmax": lambda s: s.softmax(-1), **QUADRATIC}.items():
        matrix = normalized_rows(weigh(scores))
        found[name] = entropy(matrix).item(), spectral_gap(matrix).item()
    exponents = {"LLN, matched": matched_exponent(sigma, *constants(q.shape[-1])), "LLN, α = β = 1": 1.0}
    features = {name: _lln_features(q, k, exponent) for name, exponent in exponents.items()}
    features |= {name: (phi(q), phi(k)) for name, phi in LINEAR.items()}
    for name, (phi_q, phi_k) in features.items():
        found[name] = entropy(phi_q @ phi_k.T).item(), linear_spectral_gap(phi_q, phi_k)
    return found


def _lln_features(q: Tensor, k: Tensor, exponent: float) -> tuple[Tensor, Tensor]:
    """exp(alpha q) and exp(alpha k), in range."""
    a, b = exponent * q, exponent * k
    return (a - a.amax(-1, keepdim=True)).exp(), (b - b.max()).exp()


def _kernel_checks(bits: dict[str, Tensor], gaps: dict[str, Tensor], length: int) -> list[Record]:
    moved = max(
        (found[name].amax(1) - found[name].amin(1)).max().item()
        for found in (bits, gaps)
        for name in HOMOGENEOUS
    )
    checks = [
        check("homogeneous kernels: H and γ against τ", "constant", f"within {moved:.0e}", moved < 1e-4)
    ]
    for name, below in (("quadratic", 1.053), ("ReLU", 1.409)):
        value = bits[name].mean().item()
        checks.append(
            check(
                f"{name}: H",
                f"log2 N - {below} = {math.log2(length) - below:.3f}",
                f"{value:.3f}",
                abs(value - math.log2(length) + below) < 0.02,
            )
        )
    variances = [sigma**4 for sigma in SIGMAS]
    small = [i for i, variance in enumerate(variances) if variance <= 2.4]
    entropy_error = max(
        abs(bits["softmax"][:, i].mean().item() - math.log2(length) + variances[i] / (2 * math.log(2)))
        for i in small
    )
    gap_error = max(
        abs(gaps["softmax"][:, i].mean().item() - 1 + math.sqrt(math.expm1(variances[i]) / length))
        for i in small
    )
    crossed = [
        s
        for i, s in enumerate(SIGMAS)
        if bits["LLN, matched"][:, i].mean() < bits["softmax"][:, i].mean() - 0.2
    ]
    return [
        *checks,
        check(
            "softmax: H = log2 N - σ⁴/(2 ln 2) up to σ⁴ = 2.4",
            "within 0.05",
            f"{entropy_error:.3f}",
            entropy_error < 0.05,
        ),
        check(
            "softmax: γ = 1 - √((e^σ⁴ - 1)/N) up to σ⁴ = 2.4",
            "within 0.01",
            f"{gap_error:.4f}",
            gap_error < 0.01,
        ),
        check(
            "matched LLN has softmax's entropy",
            "similar (paper)",
            f"more than 0.2 bits below from σ = {crossed[0]:.2f} on" if crossed else "within 0.2 bits",
            not crossed,
        ),
    ]
