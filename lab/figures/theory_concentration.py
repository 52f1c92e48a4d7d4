"""Temperature, entropy and spectral gap without a model (LLN, Theorems 3.2 to 3.4, Fig. 2)."""

import math
from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor

from lab.figures.record import Figure, Record
from lab.figures.theory import (
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
    q, k = queries_and_keys(min(length, SHORT), head_dim, 0)
    figure = Figure("Temperature", columns=2)
    _entropy_of_scores(figure, scores, taus)
    _variance_of_weights(figure, scores, taus)
    _eigenvalues(figure, q, k)
    _biased_concentration(figure, softmax_log_weights(q, k).exp())
    return figure.record(
        "Above: one row of 64 Gaussian scores of standard deviation 2; crosses are finite "
        "differences. The derivative printed in the paper lacks 1/ln 2. Below, left: the second eigenvalue "
        "is not the largest variance, which is the squared top singular value of the centred matrix. "
        "Below, right: with a share 1 - e of all attention on one token the second eigenvalue is e times "
        "that before, at the same temperature."
    )


def _differences(function: Callable[..., Tensor], scores: Tensor, taus: list[float]) -> list[float]:
    """Derivatives by the temperature, as finite differences."""
    return [
        ((function(scores, tau * (1 + 1e-5)) - function(scores, tau * (1 - 1e-5))) / (2e-5 * tau)).item()
        for tau in taus
    ]


def _entropy_of_scores(figure: Figure, scores: Tensor, taus: list[float]) -> None:
    bits = [softmax_entropy(scores, tau).item() for tau in taus]
    slopes = [entropy_slope(scores, tau).item() for tau in taus]
    numeric = _differences(softmax_entropy, scores, taus)
    panel = figure.lines("Theorem 3.2: entropy", "temperature τ", "bits, bits per unit of τ", "log")
    panel.curve("H", taus, bits, "softmax")
    panel.curve("dH/dτ", taus, slopes, shade=0.5)
    panel.curve("as printed", taus, [x * math.log(2) for x in slopes], style="--")
    panel.curve("", taus[::3], numeric[::3], shade=0.5, style="x")
    error = max(abs(a / b - 1) for a, b in zip(slopes, numeric, strict=True))
    figure.check(
        "Theorem 3.2: dH/dτ = Var(x)/(τ³ ln 2)", "finite differences", f"within {error:.0e}", error < 1e-4
    )
    grows = all(b > a for a, b in pairwise(bits))
    figure.check("H grows with τ", "at each of 30 values", "it does", grows)


def _variance_of_weights(figure: Figure, scores: Tensor, taus: list[float]) -> None:
    variances = [softmax_variance(scores, tau).item() for tau in taus]
    slopes = [variance_slope(scores, tau).item() for tau in taus]
    numeric = _differences(softmax_variance, scores, taus)
    panel = figure.lines("Theorem 3.4: variance of the weights", "temperature τ", "variance", "log")
    panel.curve("σ²", taus, variances, "softmax")
    error = max(abs(a - b) for a, b in zip(slopes, numeric, strict=True)) / max(map(abs, slopes))
    figure.check("Theorem 3.4: derivative of σ²", "finite differences", f"within {error:.0e}", error < 1e-4)
    limit = (1 - 1 / len(scores)) / len(scores)
    cold, hot = (softmax_variance(scores, tau).item() for tau in (1e-3, 1e6))
    ends = f"{cold:.5f} and {hot:.0e}"
    figure.check("σ² at τ → 0 and → ∞", f"{limit:.5f} and 0", ends, abs(cold - limit) < 1e-9)


def _eigenvalues(figure: Figure, q: Tensor, k: Tensor) -> None:
    ratios: dict[str, list[float]] = {"softmax": [], "LLN, matched": []}
    for sigma in SIGMAS:
        exponent = matched_exponent(sigma, *constants(q.shape[-1]))
        logs = {
            "softmax": softmax_log_weights(sigma * q, sigma * k),
            "LLN, matched": lln_matrix_log(sigma * q, sigma * k, exponent),
        }
        for name, log in logs.items():
            matrix = log.exp()
            second = 1 - spectral_gap(matrix).item()
            ratios[name].append(top_singular_value(matrix).item() / second)
    panel = figure.lines("Theorem 3.3: s₁ over |λ₂|", "standard deviation σ of q and k", "ratio")
    for name, found in ratios.items():
        panel.curve(name, SIGMAS, found, METHOD[name])
    least = min(min(found) for found in ratios.values())
    figure.check(
        "Theorem 3.3: s₁ = |λ₂|", "ratio 1; at least 1 in general", f"{least:.2f} at least", least < 1.01
    )


def _biased_concentration(figure: Figure, matrix: Tensor) -> None:
    shares = torch.linspace(0, 1, 11, dtype=torch.float64).tolist()
    sink = torch.zeros_like(matrix)
    sink[:, 0] = 1
    gaps = [spectral_gap((1 - e) * sink + e * matrix).item() for e in shares]
    panel = figure.lines("Biased concentration", "share e of unbiased attention", "spectral gap γ")
    panel.curve("softmax, σ = 1", shares, gaps, "softmax", style="o-")
    worst = max(abs(1 - gap - e * (1 - gaps[-1])) for gap, e in zip(gaps, shares, strict=True))
    figure.check("γ = 1 - e |λ₂|", "exactly", f"within {worst:.0e}", worst < 1e-8)


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
    figure = Figure("Entropy and spectral gap of kernels")
    for title, unit, found in (("Entropy", "H, bits", bits), ("Spectral gap", "γ", gaps)):
        panel = figure.lines(title, "temperature τ = 1/σ²", unit, "log")
        for name in METHOD:
            panel.banded(name, taus, found[name], METHOD[name], style=STYLE.get(name, "-"))
    _check_homogeneous_kernels(figure, bits, gaps, length)
    _check_softmax(figure, bits["softmax"].mean(0).tolist(), gaps["softmax"].mean(0).tolist(), length)
    _check_matching(figure, bits)
    return figure.record(
        f"Gaussian q and k of standard deviation σ, N = {length}, d = {head_dim}; mean and range of "
        f"{len(SEEDS)} draws. Homogeneous kernels (quadratic, ReLU and their linear forms) do not depend on "
        "σ at all. Moment matching gives LLN softmax's temperature, but from σ = 1 on a more concentrated "
        "attention."
    )


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


def _check_homogeneous_kernels(
    figure: Figure, bits: dict[str, Tensor], gaps: dict[str, Tensor], length: int
) -> None:
    moved = max(
        (found[name].amax(1) - found[name].amin(1)).max().item()
        for found in (bits, gaps)
        for name in HOMOGENEOUS
    )
    figure.check("homogeneous kernels: H and γ against τ", "constant", f"within {moved:.0e}", moved < 1e-4)
    for name, below in (("quadratic", 1.053), ("ReLU", 1.409)):
        value, level = bits[name].mean().item(), math.log2(length) - below
        near = abs(value - level) < 0.02
        figure.check(f"{name}: H", f"log2 N - {below} = {level:.3f}", f"{value:.3f}", near)


def _check_softmax(figure: Figure, bits: list[float], gaps: list[float], length: int) -> None:
    """The laws of softmax's entropy and gap; `bits` and `gaps` are means over the draws, one per sigma."""
    entropy_errors, gap_errors = [], []
    for sigma, h, gap in zip(SIGMAS, bits, gaps, strict=True):
        variance = sigma**4
        if variance <= 2.4:
            entropy_errors.append(abs(h - math.log2(length) + variance / (2 * math.log(2))))
            gap_errors.append(abs(gap - 1 + math.sqrt(math.expm1(variance) / length)))
    worst = max(entropy_errors)
    figure.check(
        "softmax: H = log2 N - σ⁴/(2 ln 2) up to σ⁴ = 2.4", "within 0.05", f"{worst:.3f}", worst < 0.05
    )
    worst = max(gap_errors)
    figure.check(
        "softmax: γ = 1 - √((e^σ⁴ - 1)/N) up to σ⁴ = 2.4", "within 0.01", f"{worst:.4f}", worst < 0.01
    )


def _check_matching(figure: Figure, bits: dict[str, Tensor]) -> None:
    below = (bits["LLN, matched"].mean(0) < bits["softmax"].mean(0) - 0.2).tolist()
    crossed = [sigma for sigma, lower in zip(SIGMAS, below, strict=True) if lower]
    found = f"more than 0.2 bits below from σ = {crossed[0]:.2f} on" if crossed else "within 0.2 bits"
    figure.check("matched LLN has softmax's entropy", "similar (paper)", found, not crossed)
