"""Log-normality and moment matching without a model (LLN, Propositions 3.1 and 4.1, Fig. 5, 6, 7 and 9)."""

import math
from collections.abc import Callable
from dataclasses import asdict
from functools import partial

import numpy as np
import torch
from torch import Tensor

from pipeline.papers import statement
from pipeline.studies.analysis.record import Record, banded, check, curve, lines
from pipeline.studies.analysis.theory import (
    LINEAR,
    METHOD,
    QUADRATIC,
    lln_matrix_log,
    matched_exponent,
    queries_and_keys,
    softmax_log_weights,
)
from user_dir.analysis import entropy, fenton, log_normality, normalized_rows
from user_dir.attention.parts.moment_matching import constants, fit_moment_matching

SEEDS = range(3)
BINS = 100
BAND = 0.2  # of the ratio of variances that counts as matched
CONSTANT = 1.85  # alpha = beta that keeps softmax's entropy best


def softmax(length: int, head_dim: int) -> Record:
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
    used = [i for i, v in enumerate(variances) if v <= 3]
    worst = max(abs(found[:, i].mean().item() / variances[i] - 1) for i in used)
    shift = max(abs(means[:, i].mean().item() - predicted[i]) for i in used)
    panels = [
        lines(
            f"{what.capitalize()} of ln P",
            "σ² of the scores, σ_q² σ_k²",
            what,
            [
                banded("measured", variances, measured, "softmax", style="o-"),
                curve(formula, variances, by_formula, style="--"),
            ],
        )
        for what, measured, formula, by_formula in (
            ("variance", found, "σ²", variances),
            ("mean", means, "-ln N - σ²/2", predicted),
        )
    ]
    return {
        "title": "Softmax attention is log-normal",
        "panels": panels,
        "note": f"Gaussian q and k, N = {length}, d = {head_dim}; mean and range of {len(SEEDS)} draws; "
        "dashed: Proposition 3.1.",
        "checks": [
            check("Proposition 3.1: var ln P = σ² up to 3", "within 5 %", f"{worst:.1%}", worst < 0.05),
            check("mean of ln P = -ln N - σ²/2 up to 3", "within 0.05", f"{shift:.3f}", shift < 0.05),
        ],
    }


def sums(length: int, head_dim: int) -> Record:
    """Fig. 6: the variance of ln sum_d exp(N(0, sigma^2)), measured and by Fenton's approximation."""
    terms, draws = (16, 64, 256), 20_000
    moderate, broad = torch.linspace(0.2, 1.2, 6).tolist(), torch.logspace(0, 5, 11, base=2).tolist()
    normal = {d: torch.randn(draws, d, generator=torch.Generator().manual_seed(d)) for d in terms}

    def measured(variances: list[float], d: int) -> list[float]:
        return [(v**0.5 * normal[d]).logsumexp(-1).var().item() for v in variances]

    panels, ratios = [], {}
    for title, variances in (("Moderate variance (a)", moderate), ("Broad range (b)", broad)):
        curves = []
        for d, shade in zip(terms, (0.0, 0.5, 1.0), strict=True):
            found = measured(variances, d)
            printed = [fenton(v, d)[1] for v in variances]
            ratios[title, d] = [a / b for a, b in zip(printed, found, strict=True)]
            curves += [
                curve(f"d = {d}", variances, found, shade=shade, style="o-"),
                curve("", variances, printed, shade=shade, style="--"),
            ]
        panels.append(lines(title, "σ²", "variance of ln Σ", curves))
    panels[1]["y_range"] = [0, 1.2 * max(max(c["y"]) for c in panels[1]["curves"][::2])]
    worst = max(abs(r - 1) for d in terms[1:] for r in ratios["Moderate variance (a)", d])
    ends = {d: panels[1]["curves"][2 * i]["y"] for i, d in enumerate(terms)}
    slopes = [(ends[d][-1] - ends[d][6]) / (broad[-1] - broad[6]) for d in terms]
    bends = [(ends[d][-1] - ends[d][8]) / (ends[d][8] - ends[d][6]) * 0.5 - 1 for d in terms]
    far = ratios["Broad range (b)", 64][broad.index(min(broad, key=lambda v: abs(v - 4)))]
    return {
        "title": "Sums of log-normal variables",
        "panels": panels,
        "note": f"{draws:,} sums of d terms; solid: measured, dashed: Fenton's ln((exp(σ²) - 1)/d + 1), "
        "which fits moderate variances only. In the broad range the variance grows linearly, with a slope "
        "that depends on d.",
        "checks": [
            check("Fenton up to σ² = 1.2, d ≥ 64", "within 10 %", f"{worst:.1%}", worst < 0.1),
            check(
                "slopes from σ² = 8 to 32 for d = 16, 64, 256",
                "linear",
                ", ".join(f"{s:.2f}" for s in slopes),
                max(map(abs, bends)) < BAND,
            ),
            check("Fenton at σ² = 4, d = 64", "aligned", f"{far:.2f} times what is measured", far < 1.1),
        ],
    }


def densities(length: int, head_dim: int) -> Record:
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
    curves = []
    for name in list(logs)[:3]:
        heights, edges = np.histogram(logs[name].numpy(), bins=BINS, density=True)
        middles = ((edges[1:] + edges[:-1]) / 2).tolist()
        style = "--" if "=" in name else "-"
        curves.append(curve(name, middles, heights.tolist(), METHOD[name], style=style))
    panel = lines("Density of ln P, σ = 1", "ln P", "density", curves)
    return {
        "title": "Log-normality",
        "panels": [panel, _distances(found)],
        "log_normality": {name: asdict(one) for name, one in found.items()},
        "note": f"Gaussian q and k, N = {length}, d = {head_dim}. Right: Kolmogorov's distance of "
        "standardised ln P from the normal distribution; entries of zero are left out. The distance alone "
        "does not favour LLN: that of 1+elu is smaller, with a variance of only "
        f"{found['1+elu'].variance:.3f}.",
        "checks": [
            check(
                "matched LLN follows softmax: variance of ln P",
                f"{found['softmax'].variance:.2f}",
                f"{found['LLN, matched'].variance:.2f}",
                abs(found["LLN, matched"].variance / found["softmax"].variance - 1) < BAND,
            ),
            check(
                "skew of ln P, softmax and matched LLN",
                "0 and 0 if log-normal",
                f"{found['softmax'].skew:+.2f} and {found['LLN, matched'].skew:+.2f}",
                abs(found["LLN, matched"].skew) < 0.1,
            ),
        ],
    }


def _distances(found: dict) -> Record:
    names = list(found)
    short = {
        "LLN, matched": "LLN",
        "LLN, α = β = 1": "LLN\nα=β=1",
        "linear quadratic": "linear\nquadr.",
        "linear ReLU": "linear\nReLU",
        "quadratic": "quadr.",
    }
    values = [found[name].distance for name in names]
    return {
        "kind": "bars",
        "title": "Distance from log-normal",
        "y_label": "Kolmogorov distance",
        "groups": [short.get(name, name) for name in names],
        "methods": [METHOD[name] for name in names],
        "series": [{"label": "", "values": values}],
    }


def _inverse_exponent(head_dim: int, length: int) -> Callable[[float], float]:
    """alpha = beta from the measured curve of variances itself instead of a line through it."""
    q, k = queries_and_keys(length, head_dim, 100)
    inputs = np.logspace(math.log10(0.05), math.log10(130), 24)
    table = [lln_matrix_log(q, k, math.sqrt(x / 2)).var().item() for x in inputs]

    def exponent(sigma: float) -> float:
        wanted = np.interp(4 * math.log(sigma), np.log(table), np.log(inputs))
        return math.sqrt(math.exp(wanted) / 2) / sigma

    return exponent


def moment_matching(length: int, head_dim: int) -> Record:
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
    return {
        "title": "Moment matching",
        "columns": 2,
        "panels": _matching_panels(sigmas, variance, bits, ways["authors' line"]),
        "fits": {name: list(fit) for name, fit in fits.items()},
        "note": f"Gaussian q and k of standard deviation σ, N = {length}, d = {head_dim}; means of "
        f"{len(SEEDS)} draws; entropies at N = {length // 2}. With b below 0 the line cannot ask for "
        f"exponents below σ̃² = -b/a = {-b / a:.2f}, so that LLN is far too concentrated for σ below about "
        "0.57. Inverting the measured curve instead matches from 0.3 to 1.5. Equal variance is not equal "
        f"entropy: a constant α = β = {CONSTANT} keeps softmax's entropy better than matching does.",
        "checks": _matching_checks(sigmas, variance, bits, a, b),
    }


def _ratios(variance: dict[str, Tensor], name: str) -> list[float]:
    base = "softmax rows" if name == "rows" else "softmax"
    return (variance[name].mean(0) / variance[base].mean(0)).tolist()


def _matching_panels(sigmas, variance, bits, matched) -> list[Record]:
    x, label = [sigma**4 for sigma in sigmas], "σ² of the scores, σ_q² σ_k²"
    ways = (  # label, key of `variance`, style of the line, place on the scale of colours
        ("authors' line", "authors' line", "-", None),
        ("within rows", "rows", "-", 0.1),
        ("line to σ̃² = 12", "line to σ̃² = 12", "--", 0.45),
        ("line to σ̃² = 24", "line to σ̃² = 24", "--", 0.75),
        ("inverted curve", "inverted curve", ":", 0.95),
    )
    ratios = [
        curve(
            name,
            sigmas,
            _ratios(variance, key),
            "lln" if shade is None else None,
            style=style,
            shade=shade,
        )
        for name, key, style, shade in ways
    ]
    limits = [
        curve(name, sigmas, [ratio] * len(sigmas), style=":")
        for name, ratio in (("±20 %", 1 + BAND), ("", 1 - BAND))
    ]
    band = lines("Ratio to softmax's variance", "standard deviation σ", "ratio", [*ratios, *limits])
    band["y_range"] = [0.5, 2.0]
    low, high = (float(statement("training/run-exponents")[key]) for key in ("low", "high"))
    products = torch.linspace(0.2, 1.6, 29, dtype=torch.float64).tolist()
    exponents = [matched(math.sqrt(x)) for x in products]
    return [
        lines(
            "Variance of ln P",
            label,
            "variance",
            [
                banded("softmax", x, variance["softmax"], "softmax"),
                banded("LLN, matched", x, variance["authors' line"], "lln"),
                banded("LLN, α = β = 1", x, variance["α = β = 1"], "lln", style="--"),
            ],
        ),
        band,
        lines(
            "Entropy",
            "standard deviation σ",
            "H, bits",
            [
                banded("softmax", sigmas, bits["softmax"], "softmax"),
                banded("LLN, matched", sigmas, bits["authors' line"], "lln"),
                banded(f"LLN, α = β = {CONSTANT}", sigmas, bits["constant"], "lln", style=":"),
            ],
        ),
        lines(
            "What matching gives",
            "σ_q σ_k",
            "√(αβ)",
            [
                curve("matched", products, exponents, "lln"),
                curve(f"{low:g}", products, [low] * len(products), style=":"),
                curve(f"{high:g}", products, [high] * len(products), style=":"),
            ],
        ),
    ]


def _matching_checks(sigmas, variance, bits, a, b) -> list[Record]:
    ratio = dict(zip(sigmas, _ratios(variance, "authors' line"), strict=True))
    inside = [s for s in sigmas if abs(ratio[s] - 1) <= BAND + 0.03]
    inverted = dict(zip(sigmas, _ratios(variance, "inverted curve"), strict=True))
    worst = max(abs(inverted[s] - 1) for s in sigmas if s <= 1.5)
    least = math.sqrt(math.sqrt(-b) / a)
    ends = [math.sqrt((p**2 - b) / (2 * a) / p) for p in (0.316, 1.122)]
    kept = max(
        abs(x - y).item()
        for s, x, y in zip(sigmas, bits["constant"].mean(0), bits["softmax"].mean(0), strict=True)
        if s <= 1.5
    )
    lost = {
        s: (x - y).item()
        for s, x, y in zip(sigmas, bits["softmax"].mean(0), bits["authors' line"].mean(0), strict=True)
    }
    return [
        check(
            "matched over a broad range",
            "σ̃² from {low} to {high} (paper)".format(**statement("theory/moment-matching")),
            f"within about 20 % for σ from {min(inside):.2f} to {max(inside):.2f}; {ratio[0.3]:.1f} times "
            "at 0.3",
            len(inside) == len(sigmas),
        ),
        check("inverting the curve, σ 0.3 to 1.5", "within 10 %", f"{worst:.1%}", worst < 0.1),
        check(
            "law of Fig. 9: √(αβ) ≥ √(√(-b)/a)",
            "2.0025 at σ_q σ_k = 0.596",
            f"{least:.4f} at {math.sqrt(-b):.3f}",
            abs(least - 2.0025) < 1e-3,
        ),
        check(
            "√(αβ) ≤ 2.2 for σ_q σ_k from 0.316 to 1.122",
            "2.2 at both ends",
            f"{ends[0]:.3f} and {ends[1]:.3f}",
            max(ends) < 2.205,
        ),
        check(
            f"constant α = β = {CONSTANT} keeps softmax's H for σ 0.3 to 1.5",
            "within 0.3 bits",
            f"{kept:.2f}",
            kept < 0.3,
        ),
        check(
            "matching keeps softmax's H",
            "equal",
            ", ".join(f"{lost[s]:.1f} bits below at σ = {s}" for s in (1.0, 1.2, 1.5)),
            lost[1.5] < 0.5,
        ),
    ]
