"""Figures and checks that need no model (`figures theory`), and their draws: queries, keys, kernels."""

import math
from argparse import Namespace
from collections.abc import Callable
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from lab.errors import UserError
from lab.figures.analyse import THEORY, function
from lab.figures.figure import Content, Figure, write_once
from user_dir.analysis import entropy, linear_spectral_gap, normalized_rows, spectral_gap, top_singular_value
from user_dir.analysis.concentration import entropy_slope, softmax_entropy, softmax_variance, variance_slope
from user_dir.analysis.gradients import (
    linear_score_gradients,
    norm_bound,
    paper_softmax_bound,
    rms_norm_beside,
    rms_norm_inside,
    softmax_bound,
    softmax_score_gradients,
)
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
        write_once(options, name, settings, lambda make=make, s=settings: make(s["length"], s["head_dim"]))


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


ROWS, KEYS, WIDTH = 64, 16, 8
EPSILON = 1e-8


def _draws(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Positive scores about 1, values, and the gradient of the loss by the output."""
    generator = torch.Generator().manual_seed(seed)
    shapes = ((ROWS, KEYS), (KEYS, WIDTH), (ROWS, WIDTH))
    scores, v, towards = (torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in shapes)
    return scores.abs(), v, towards


def _largest_by_autograd(scores: Tensor, v: Tensor, towards: Tensor, norm: Callable) -> float:
    scores = scores.clone().requires_grad_()
    (norm(scores @ v, EPSILON) * towards).sum().backward()
    return scores.grad.abs().max().item()


def score_gradients(length: int, head_dim: int) -> Content:
    """Experiment 1: the largest |dL/ds| against the scale of the scores s."""
    scores, v, towards = _draws()
    products, scales = towards @ v.T, torch.logspace(-12, 0, 25, dtype=torch.float64).tolist()
    found: dict[str, list[float]] = {"linear": [], "softmax": [], "inside": [], "beside": []}
    for scale in scales:
        s = scale * scores
        total = s.sum(-1, keepdim=True)
        found["linear"].append(linear_score_gradients(s / total, products, total).abs().max().item())
        found["softmax"].append(softmax_score_gradients(s.softmax(-1), products).abs().max().item())
        found["inside"].append(_largest_by_autograd(s, v, towards, rms_norm_inside))
        found["beside"].append(_largest_by_autograd(s, v, towards, rms_norm_beside))
    figure = Figure("Gradients by the scores")
    panel = figure.lines("Largest gradient by a score", "scale of the scores s", "|∂L/∂s|", "log", "log")
    panel.curve("linear", scales, found["linear"], "elu")
    panel.curve("softmax", scales, found["softmax"], "softmax")
    panel.curve("NormAttention", scales, found["inside"], "norm")
    panel.curve("its ε beside the root", scales, found["beside"], "norm", style="--")
    _check_slopes(figure, scales, found)
    c1, c2 = (x.norm(dim=-1).max().item() for x in (towards, v))
    for place in ("inside", "beside"):
        bound, largest = norm_bound(c1, c2, EPSILON, place == "inside"), max(found[place])
        statement = f"NormAttention, ε {place} the root: largest |∂L/∂s|"
        figure.check(
            statement, f"at most {bound:.3g}", f"{largest:.3g}", largest <= bound, ours=place == "beside"
        )
    return figure.record(
        f"{ROWS} rows of {KEYS} random scores, values of width {WIDTH}. Dividing by the sum of the "
        "scores makes the gradient grow like 1/s without bound. RMSNorm has the same slope down to the "
        "root of its epsilon (1e-8 inside the root, solid; beside it as in this project, dashed) and is "
        "flat below. Softmax does not depend on the scale."
    )


def _check_slopes(figure: Figure, scales: list[float], found: dict[str, list[float]]) -> None:
    slopes = [math.log10(b / a) / 0.5 for a, b in pairwise(found["linear"])]
    constant = max(abs(slope + 1) for slope in slopes) < 1e-6
    figure.check(
        "linear: slope of log |∂L/∂s| over log s", "-1", f"{min(slopes):.4f} to {max(slopes):.4f}", constant
    )
    low = [y for x, y in zip(scales, found["inside"], strict=True) if x < 0.1 * math.sqrt(EPSILON)]
    ratio = max(low) / min(low)
    statement = "NormAttention is flat below √ε: largest over smallest value"
    figure.check(statement, "at most 10, our margin", f"{ratio:.3f}", ratio <= 10)


def bounds(length: int, head_dim: int) -> Content:
    """Equations 8 to 11, Proposition 3.1 and equation 59, each against the bounded value."""
    figure = Figure("Bounds of gradients")
    _weights(figure)
    _proposition_3_1(figure, head_dim)
    _softmax_bounds(figure)
    return figure.record(
        "Above left: largest derivative of a weight by a score over 200 random rows of 16 scores; "
        "the bounds 1/4 (softmax) and 1/(4 s) (linear) are reached by two equal scores. Above right: 1+elu "
        "with q = k = -t; the divergence is in s, and the chain rule through q takes it back. Below: the "
        "largest gradient by a score for n keys and c1 = c2 = 1; the paper's √n/4 (equation 59) is too "
        "small for 2 and 3 keys."
    )


def _weights(figure: Figure) -> None:
    generator = torch.Generator().manual_seed(0)
    scales = torch.logspace(-1, math.log10(30), 15).tolist()
    softmax, linear = [], []  # shares of the bounds
    for scale in scales:
        s = scale * torch.randn(200, KEYS, generator=generator, dtype=torch.float64)
        p = s.softmax(-1)
        softmax.append(4 * (torch.diag_embed(p) - p[..., None] * p[:, None]).abs().max().item())
        s = s.abs()
        total = s.sum(-1, keepdim=True)[..., None]
        jacobian = (torch.eye(KEYS, dtype=torch.float64) - (s / total[..., 0])[..., None]) / total
        linear.append((4 * s[:, None] * jacobian.abs()).max().item())
    panel = figure.lines("Derivatives of weights", "scale of the scores", "share of the bound", "log")
    panel.curve("softmax, 4 |∂p/∂s|", scales, softmax, "softmax")
    panel.curve("linear, 4 s |∂p/∂s|", scales, linear, "elu")
    for statement, bound, shares in (
        ("softmax, (8) and (9): |∂p/∂s|", "1/4", softmax),
        ("linear, (10) and (11): 4 s |∂p/∂s|", "1", linear),
    ):
        most = max(shares)
        figure.check(statement, f"at most {bound}", f"{most:.4f} of it", most <= 1 + 1e-12)


def _proposition_3_1(figure: Figure, head_dim: int) -> None:
    times, n = torch.linspace(0, 10, 21, dtype=torch.float64).tolist(), KEYS
    by_score, by_query, expected = [], [], []
    for t in times:
        q = torch.full((head_dim,), -t, dtype=torch.float64, requires_grad=True)
        generator = torch.Generator().manual_seed(0)
        keys = 0.1 * torch.randn(n, head_dim, generator=generator, dtype=torch.float64) - t
        s = (F.elu(q) + 1) @ (F.elu(keys) + 1).T
        by_query.append(torch.autograd.grad((s / s.sum())[0], q)[0].abs().max().item())
        value = head_dim * math.exp(-2 * t)
        s = torch.full((n,), value, dtype=torch.float64)
        jacobian = torch.autograd.functional.jacobian(lambda x: x / x.sum(), s)
        by_score.append(jacobian.diagonal().max().item())
        expected.append(math.exp(2 * t) * (1 - 1 / n) / (head_dim * n))
    panel = figure.lines("Proposition 3.1: q = k = -t", "t", "largest derivative of a weight", y="log")
    panel.curve("by s", times, by_score, "elu")
    panel.curve("by q", times, by_query, "elu", style="--")
    panel.curve("formula", times[::2], expected[::2], style="x")
    worst = max(abs(a / b - 1) for a, b in zip(by_score, expected, strict=True))
    figure.check(
        "Proposition 3.1: ∂p/∂s is e^(2t) (1 - 1/n)/(d n)", "equal", f"within {worst:.1e}", worst < 1e-9
    )
    first, last = by_query[0], by_query[-1]
    found = f"{first:.2g} at 0, {last:.2g} at 10"
    figure.check("the same by q stays bounded", "no growth with t", found, last < 10 * first, ours=True)


def _softmax_bounds(figure: Figure) -> None:
    counts, largest = list(range(2, 17)), []
    towards = torch.eye(1, WIDTH, dtype=torch.float64)
    for n in counts:
        v = -torch.eye(1, WIDTH, dtype=torch.float64).repeat(n, 1)
        v[0] *= -1
        share = torch.linspace(0.01, 0.99, 99, dtype=torch.float64)[:, None]
        p = torch.cat([share, ((1 - share) / (n - 1)).expand(-1, n - 1)], 1)
        largest.append(softmax_score_gradients(p, towards @ v.T).abs().max().item())
    printed = [paper_softmax_bound(1, 1, n) for n in counts]
    panel = figure.lines("Equation 59", "keys n", "largest |∂L/∂s|")
    panel.curve("largest found", counts, largest, "softmax", style="o-")
    panel.curve("√n c1 c2/4", counts, printed, style="--")
    false = [n for n, a, b in zip(counts, largest, printed, strict=True) if a > b + 1e-12]
    found = f"false for n = {', '.join(map(str, false))}"
    figure.check("(59): |∂L/∂s| ≤ √n c1 c2/4", "for all n", found, not false)
    reached = max(abs(x - softmax_bound(1, 1)) for x in largest) < 1e-9
    figure.check("|∂L/∂s| ≤ c1 c2/2", "for all n, reached", f"largest {max(largest):.6f}", reached, ours=True)


SIGMAS = torch.logspace(math.log10(0.3), math.log10(3), 12).tolist()
SEEDS = range(5)
HOMOGENEOUS = ("quadratic", "ReLU", "linear quadratic", "linear ReLU")
STYLE = {"LLN, α = β = 1": "--", "linear quadratic": "--", "linear ReLU": "--"}
SHORT = 256  # of the matrices whose singular values are taken


def theorems(length: int, head_dim: int) -> Content:
    """Theorems 3.2 and 3.4 on a row of scores, 3.3 on matrices, and biased concentration."""
    scores = 2 * torch.randn(64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    taus = torch.logspace(-1, 1.5, 30, dtype=torch.float64).tolist()
    q, k = queries_and_keys(min(length, SHORT), head_dim, 0)
    figure = Figure("Temperature")
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
    every = [ratio for found in ratios.values() for ratio in found]
    holds = max(abs(ratio - 1) for ratio in every) < 0.01
    figure.check(
        "Theorem 3.3: s₁ = |λ₂|", "ratio 1; at least 1 in general", f"{min(every):.2f} at least", holds
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


def kernels(length: int, head_dim: int) -> Content:
    """Fig. 2: entropy and spectral gap of eight kernels against the inverse temperature sigma^2."""
    bits = {name: torch.zeros(len(SEEDS), len(SIGMAS)) for name in METHOD}
    gaps = {name: torch.zeros(len(SEEDS), len(SIGMAS)) for name in METHOD}
    for seed in SEEDS:
        q, k = queries_and_keys(length, head_dim, seed)
        for i, sigma in enumerate(SIGMAS):
            for name, (h, gap) in _measured(sigma * q, sigma * k, sigma).items():
                bits[name][seed, i], gaps[name][seed, i] = h, gap
    inverse = [sigma**2 for sigma in SIGMAS]
    figure = Figure("Entropy and spectral gap of kernels")
    for title, unit, found in (("Entropy", "H, bits", bits), ("Spectral gap", "γ", gaps)):
        panel = figure.lines(title, "inverse temperature 1/τ = σ²", unit, "log")
        for name in METHOD:
            panel.banded(name, inverse, found[name], METHOD[name], style=STYLE.get(name, "-"))
    _check_homogeneous_kernels(figure, bits, gaps, length)
    _check_softmax(figure, bits["softmax"].mean(0).tolist(), gaps["softmax"].mean(0).tolist(), length)
    _check_matching(figure, bits)
    return figure.record(
        f"Gaussian q and k of standard deviation σ, N = {length}, d = {head_dim}; mean and range of "
        f"{len(SEEDS)} draws. Homogeneous kernels (quadratic, ReLU and their linear forms) do not depend on "
        "σ at all. Moment matching gives LLN softmax's temperature, but from σ of about 0.9 on a more "
        "concentrated attention."
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
        "softmax: H = log2 N - σ⁴/(2 ln 2) up to σ⁴ = 2.4",
        "within 0.05, our margin",
        f"{worst:.3f}",
        worst < 0.05,
    )
    worst = max(gap_errors)
    figure.check(
        "softmax: γ = 1 - √((e^σ⁴ - 1)/N) up to σ⁴ = 2.4",
        "within 0.01, our margin",
        f"{worst:.4f}",
        worst < 0.01,
    )


def _check_matching(figure: Figure, bits: dict[str, Tensor]) -> None:
    far = (bits["LLN, matched"].mean(0) < bits["softmax"].mean(0) - 0.2).tolist()
    found = "within 0.2 bits"
    if any(far):
        first = far.index(True)
        found += f" at {first} of {len(far)} values of σ, more below at those from {SIGMAS[first]:.2f} on"
    figure.check(
        "matched LLN has softmax's entropy",
        "similar (paper): within 0.2 bits, our margin",
        found,
        not any(far),
    )
