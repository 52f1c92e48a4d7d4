"""Log-normality and moment matching without a model (LLN, Propositions 3.1 and 4.1, Fig. 5, 6, 7 and 9)."""

import math
from collections.abc import Callable
from dataclasses import asdict
from functools import partial

import numpy as np
import torch
from torch import Tensor

from lab.figures.figure import Content, Figure
from lab.figures.theory import (
    LINEAR,
    METHOD,
    QUADRATIC,
    lln_matrix_log,
    matched_exponent,
    queries_and_keys,
    softmax_log_weights,
)
from lab.papers import statement
from lab.publish.analysis import PEAKS
from user_dir.analysis import LogNormality, entropy, fenton, log_normality, normalized_rows
from user_dir.attention.parts.moment_matching import constants, fit_moment_matching

SEEDS = range(3)
WIDTH_OF_FIGURE_9 = 64
"""The head's width for which the paper gives the law's constants."""
BINS = 100
BAND = 0.2  # of the ratio of variances that counts as matched
CONSTANT = 1.85  # alpha = beta that keeps softmax's entropy best
TERMS, DRAWS = (16, 64, 256), 20_000  # of the sums of log-normal variables


def softmax(length: int, head_dim: int) -> Content:
    """Fig. 5a: variance and mean of ln P of softmax attention against sigma_q^2 sigma_k^2."""
    length *= 2
    variances = torch.linspace(0.1, 4, 14, dtype=torch.float64).tolist()
    logs = [
        [softmax_log_weights(v**0.25 * q, v**0.25 * k) for v in variances]
        for q, k in (queries_and_keys(length, head_dim, seed) for seed in SEEDS)
    ]
    found = torch.tensor([[log.var().item() for log in row] for row in logs])
    means = torch.tensor([[log.mean().item() for log in row] for row in logs])
    predicted = [-math.log(length) - v / 2 for v in variances]
    figure = Figure("Softmax attention is log-normal")
    for what, measured, formula, by_formula in (
        ("variance", found, "σ²", variances),
        ("mean", means, "-ln N - σ²/2", predicted),
    ):
        panel = figure.lines(f"{what.capitalize()} of ln P", "σ² of the scores, σ_q² σ_k²", what)
        panel.banded("measured", variances, measured, "softmax", style="o-")
        panel.curve(formula, variances, by_formula, style="--")
    used = [i for i, v in enumerate(variances) if v <= 3]
    worst = max(abs(found[:, i].mean().item() / variances[i] - 1) for i in used)
    figure.check(
        "Proposition 3.1: var ln P = σ² up to 3", "within 5 %, our margin", f"{worst:.1%}", worst < 0.05
    )
    shift = max(abs(means[:, i].mean().item() - predicted[i]) for i in used)
    figure.check(
        "mean of ln P = -ln N - σ²/2 up to 3", "within 0.05, our margin", f"{shift:.3f}", shift < 0.05
    )
    return figure.record(
        f"Gaussian q and k, N = {length}, d = {head_dim}; mean and range of {len(SEEDS)} draws; "
        "dashed: Proposition 3.1."
    )


def sums(length: int, head_dim: int) -> Content:
    """Fig. 6: the variance of ln sum_d exp(N(0, sigma^2)), measured and by Fenton's approximation."""
    moderate, broad = torch.linspace(0.2, 1.2, 6).tolist(), torch.logspace(0, 5, 11, base=2).tolist()
    figure = Figure("Sums of log-normal variables")
    near = _sums(figure, "Moderate variance (a)", moderate)
    far = _sums(figure, "Broad range (b)", broad)
    figure.panels[1]["y_range"] = [0, 1.2 * max(max(measured) for measured, _ in far.values())]
    worst = max(
        abs(printed / measured - 1) for d in TERMS[1:] for measured, printed in zip(*near[d], strict=True)
    )
    figure.check("Fenton up to σ² = 1.2, d ≥ 64", "within 10 %, our margin", f"{worst:.1%}", worst < 0.1)
    at_8, at_16, at_32 = 6, 8, 10  # places in `broad`
    slopes, bends = [], []
    for y, _ in far.values():
        slopes.append((y[at_32] - y[at_8]) / (broad[at_32] - broad[at_8]))
        bends.append((y[at_32] - y[at_16]) / (y[at_16] - y[at_8]) * 0.5 - 1)
    shown = ", ".join(f"{slope:.2f}" for slope in slopes)
    linear = max(map(abs, bends)) < BAND
    expected = f"linear: bends below {BAND:.0%}, our margin"
    figure.check("slopes from σ² = 8 to 32 for d = 16, 64, 256", expected, shown, linear)
    at_4 = broad.index(min(broad, key=lambda v: abs(v - 4)))
    measured, printed = far[64]
    ratio = printed[at_4] / measured[at_4]
    figure.check("Fenton at σ² = 4, d = 64", "aligned", f"{ratio:.2f} times what is measured", ratio < 1.1)
    return figure.record(
        f"{DRAWS:,} sums of d terms; solid: measured, dashed: Fenton's ln((exp(σ²) - 1)/d + 1), "
        "which fits moderate variances only. In the broad range the variance grows linearly, with a slope "
        "that depends on d."
    )


def _sums(figure: Figure, title: str, variances: list[float]) -> dict[int, tuple[list[float], list[float]]]:
    """Add a panel; for each number of terms, the variances of ln of sums, measured and Fenton's."""
    panel = figure.lines(title, "σ²", "variance of ln Σ")
    found = {}
    for d, shade in zip(TERMS, (0.0, 0.5, 1.0), strict=True):
        normal = torch.randn(DRAWS, d, generator=torch.Generator().manual_seed(d))
        measured = [(v**0.5 * normal).logsumexp(-1).var().item() for v in variances]
        printed = [fenton(v, d)[1] for v in variances]
        panel.curve(f"d = {d}", variances, measured, shade=shade, style="o-")
        inside = printed[-1] < 2 * measured[-1]  # a name beside a curve that leaves the panel would be lost
        panel.curve(f"Fenton, d = {d}" if inside else "", variances, printed, shade=shade, style="--")
        found[d] = measured, printed
    return found


def densities(length: int, head_dim: int) -> Content:
    """Fig. 7: densities of ln P at sigma = 1, and how log-normal eight kernels are."""
    q, k = queries_and_keys(length, head_dim, 0)
    scores = q @ k.T * head_dim**-0.5
    logs = {
        "softmax": softmax_log_weights(q, k),
        "LLN, matched": lln_matrix_log(q, k, matched_exponent(1.0, *constants(head_dim))),
        "LLN, α = β = 1": lln_matrix_log(q, k, 1.0),
        **{name: normalized_rows(weigh(scores)).log() for name, weigh in QUADRATIC.items()},
    }
    for name, phi in LINEAR.items():
        logs[name] = normalized_rows(phi(q) @ phi(k).T).log()
    found = {name: log_normality(log) for name, log in logs.items()}
    figure = Figure("Log-normality")
    panel = figure.lines("Density of ln P, σ = 1", "ln P", "density")
    panel["labels"] = PEAKS
    for name in list(logs)[:3]:
        heights, edges = np.histogram(logs[name].numpy(), bins=BINS, density=True)
        middles = ((edges[1:] + edges[:-1]) / 2).tolist()
        panel.curve(name, middles, heights.tolist(), METHOD[name], style="--" if "=" in name else "-")
    _distances(figure, found)
    ours, theirs = found["LLN, matched"], found["softmax"]
    figure.check(
        "matched LLN follows softmax: variance of ln P",
        f"{theirs.variance:.2f}, within {BAND:.0%}, our margin",
        f"{ours.variance:.2f}",
        abs(ours.variance / theirs.variance - 1) < BAND,
    )
    figure.check(
        "skew of ln P, softmax and matched LLN",
        "0 and 0 if log-normal",
        f"{theirs.skew:+.2f} and {ours.skew:+.2f}",
        abs(ours.skew) < 0.1,
    )
    return figure.record(
        f"Gaussian q and k, N = {length}, d = {head_dim}. Right: Kolmogorov's distance of "
        "standardised ln P from the normal distribution; entries of zero are left out. The distance alone "
        "does not favour LLN: that of 1+elu is smaller, with a variance of only "
        f"{found['1+elu'].variance:.3f}.",
        log_normality={name: asdict(one) for name, one in found.items()},
    )


def _distances(figure: Figure, found: dict[str, LogNormality]) -> None:
    short = {
        "LLN, matched": "LLN",
        "LLN, α = β = 1": "LLN\nα=β=1",
        "linear quadratic": "linear\nquadr.",
        "linear ReLU": "linear\nReLU",
        "quadratic": "quadr.",
    }
    names, methods = [short.get(name, name) for name in found], [METHOD[name] for name in found]
    series = {"label": "", "values": [one.distance for one in found.values()]}
    figure.bars("Distance from log-normal", "Kolmogorov distance", names, methods, series)


def _inverse_exponent(head_dim: int, length: int) -> Callable[[float], float]:
    """alpha = beta from the measured curve of variances itself instead of a line through it."""
    q, k = queries_and_keys(length, head_dim, 100)
    inputs = np.logspace(math.log10(0.05), math.log10(130), 24)
    table = [lln_matrix_log(q, k, math.sqrt(x / 2)).var().item() for x in inputs]

    def exponent(sigma: float) -> float:
        wanted = np.interp(4 * math.log(sigma), np.log(table), np.log(inputs))
        return math.sqrt(math.exp(wanted) / 2) / sigma

    return exponent


def moment_matching(length: int, head_dim: int) -> Content:
    """Fig. 5b: variances of ln P before and after moment matching, where it matches; Fig. 9's law."""
    length *= 2
    sigmas = [0.3, 0.4, 0.5, 0.55, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2, 1.4, 1.5, 1.75, 2.0]
    a, b = constants(head_dim)
    fits = {
        "authors' line": (a, b),
        "line to σ̃² = 12": fit_moment_matching(head_dim, variances=(1.0, 6.0)),
        "line to σ̃² = 24": fit_moment_matching(head_dim, variances=(1.0, 12.0)),
    }
    ways = {name: partial(matched_exponent, a=a, b=b) for name, (a, b) in fits.items()}
    ways["inverted curve"] = _inverse_exponent(head_dim, length)
    ways["α = β = 1"], ways["constant"] = (lambda sigma: 1.0), (lambda sigma: CONSTANT)
    variance, bits = _drawn(sigmas, ways, length, head_dim)
    figure = Figure("Moment matching")
    _matching_panels(figure, sigmas, variance, bits, ways["authors' line"])
    _check_variances(figure, sigmas, variance)
    if head_dim == WIDTH_OF_FIGURE_9:
        _check_exponents(figure, a, b)
    _check_entropies(figure, sigmas, bits)
    return figure.record(
        f"Gaussian q and k of standard deviation σ, N = {length}, d = {head_dim}; means of "
        f"{len(SEEDS)} draws; entropies at N = {length // 2}. With b below 0 the line cannot ask for "
        f"exponents below σ̃² = -b/a = {-b / a:.2f}, so that LLN is far too concentrated for σ below about "
        "0.57. Inverting the measured curve instead matches from 0.3 to 1.5. Equal variance is not equal "
        f"entropy: a constant α = β = {CONSTANT} keeps softmax's entropy better than matching does. Above "
        'right: "within rows" compares the means of the rows\' own variances; "line to σ̃² = 12" and "24" '
        "are fits of a and b up to that variance.",
        fits={name: list(fit) for name, fit in fits.items()},
    )


def _drawn(
    sigmas: list[float], ways: dict[str, Callable[[float], float]], length: int, head_dim: int
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Variances of ln P and entropies, `(seeds, sigmas)`: of softmax, and of LLN with these exponents."""
    shape = (len(SEEDS), len(sigmas))
    variance = {name: torch.zeros(shape) for name in ("softmax", "softmax rows", "rows", *ways)}
    bits = {name: torch.zeros(shape) for name in ("softmax", "authors' line", "constant")}
    for seed in SEEDS:
        q, k = queries_and_keys(length, head_dim, seed)
        for i, sigma in enumerate(sigmas):
            log = softmax_log_weights(sigma * q, sigma * k)
            variance["softmax"][seed, i], variance["softmax rows"][seed, i] = log.var(), log.var(-1).mean()
            short_q, short_k = sigma * q[: length // 2], sigma * k[: length // 2]
            bits["softmax"][seed, i] = entropy(softmax_log_weights(short_q, short_k).exp())
            for name, exponent in ways.items():
                log = lln_matrix_log(sigma * q, sigma * k, exponent(sigma))
                variance[name][seed, i] = log.var()
                if name in bits:
                    bits[name][seed, i] = entropy(lln_matrix_log(short_q, short_k, exponent(sigma)).exp())
                if name == "authors' line":
                    variance["rows"][seed, i] = log.var(-1).mean()
    return variance, bits


def _ratios(variance: dict[str, Tensor], name: str) -> list[float]:
    base = "softmax rows" if name == "rows" else "softmax"
    return (variance[name].mean(0) / variance[base].mean(0)).tolist()


def _matching_panels(
    figure: Figure,
    sigmas: list[float],
    variance: dict[str, Tensor],
    bits: dict[str, Tensor],
    matched: Callable[[float], float],
) -> None:
    panel = figure.lines("Variance of ln P", "σ² of the scores, σ_q² σ_k²", "variance")
    x = [sigma**4 for sigma in sigmas]
    panel.banded("softmax", x, variance["softmax"], "softmax")
    panel.banded("LLN, matched", x, variance["authors' line"], "lln")
    panel.banded("LLN, α = β = 1", x, variance["α = β = 1"], "lln", style="--")
    panel = figure.lines("Ratio to softmax's variance", "standard deviation σ", "ratio")
    panel["y_range"] = [0.5, 2.0]
    panel.curve("authors' line", sigmas, _ratios(variance, "authors' line"), "lln", style="-")
    panel.curve("within rows", sigmas, _ratios(variance, "rows"), style="-", shade=0.1)
    for name, style, shade in (
        ("line to σ̃² = 12", "--", 0.45),
        ("line to σ̃² = 24", "--", 0.75),
        ("inverted curve", ":", 0.95),
    ):
        panel.curve(name, sigmas, _ratios(variance, name), style=style, shade=shade)
    for name, ratio in (("±20 %", 1 + BAND), ("", 1 - BAND)):
        panel.curve(name, sigmas, [ratio] * len(sigmas), style=":")
    panel = figure.lines("Entropy", "standard deviation σ", "H, bits")
    panel.banded("softmax", sigmas, bits["softmax"], "softmax")
    panel.banded("LLN, matched", sigmas, bits["authors' line"], "lln")
    panel.banded(f"LLN, α = β = {CONSTANT}", sigmas, bits["constant"], "lln", style=":")
    panel = figure.lines("What matching gives", "σ_q σ_k", "√(αβ)")
    products = torch.linspace(0.2, 1.6, 29, dtype=torch.float64).tolist()
    panel.curve("matched", products, [matched(math.sqrt(x)) for x in products], "lln")
    row = statement("training/run-exponents")
    for level in (float(row["low"]), float(row["high"])):
        panel.curve(f"{level:g}", products, [level] * len(products), style=":")


def _check_variances(figure: Figure, sigmas: list[float], variance: dict[str, Tensor]) -> None:
    ratio = dict(zip(sigmas, _ratios(variance, "authors' line"), strict=True))
    inside = [s for s in sigmas if abs(ratio[s] - 1) <= BAND + 0.03]
    figure.check(
        "matched over a broad range",
        "σ̃² from {low} to {high} (paper)".format(**statement("theory/moment-matching")),
        f"within about 20 % for σ from {min(inside):.2f} to {max(inside):.2f}; {ratio[0.3]:.1f} times at 0.3",
        len(inside) == len(sigmas),
    )
    inverted = zip(sigmas, _ratios(variance, "inverted curve"), strict=True)
    worst = max(abs(ratio - 1) for sigma, ratio in inverted if sigma <= 1.5)
    figure.check("inverting the curve, σ 0.3 to 1.5", "within 10 %", f"{worst:.1%}", worst < 0.1, ours=True)


def _check_exponents(figure: Figure, a: float, b: float) -> None:
    least = math.sqrt(math.sqrt(-b) / a)
    found = f"{least:.4f} at {math.sqrt(-b):.3f}"
    near = abs(least - 2.0025) < 1e-3
    figure.check("law of Fig. 9: √(αβ) ≥ √(√(-b)/a)", "2.0025 at σ_q σ_k = 0.596", found, near, ours=True)
    low, high = (math.sqrt((p**2 - b) / (2 * a) / p) for p in (0.316, 1.122))
    found = f"{low:.3f} and {high:.3f}"
    below = max(low, high) < 2.205
    figure.check("√(αβ) ≤ 2.2 for σ_q σ_k from 0.316 to 1.122", "2.2 at both ends", found, below, ours=True)


def _check_entropies(figure: Figure, sigmas: list[float], bits: dict[str, Tensor]) -> None:
    means = {name: found.mean(0) for name, found in bits.items()}
    moved = (means["constant"] - means["softmax"]).abs().tolist()
    kept = max(x for sigma, x in zip(sigmas, moved, strict=True) if sigma <= 1.5)
    figure.check(
        f"constant α = β = {CONSTANT} keeps softmax's H for σ 0.3 to 1.5",
        "within 0.3 bits",
        f"{kept:.2f}",
        kept < 0.3,
        ours=True,
    )
    lost = dict(zip(sigmas, (means["softmax"] - means["authors' line"]).tolist(), strict=True))
    found = ", ".join(f"{lost[sigma]:.1f} bits below at σ = {sigma}" for sigma in (1.0, 1.2, 1.5))
    figure.check("matching keeps softmax's H", "within 0.5 bits, our margin", found, lost[1.5] < 0.5)
