"""Gradients by the scores of attention, without a model (TransNormer, section 3.1, Appendices B to D)."""

import math
from collections.abc import Callable
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from lab.figures.record import Figure, Record
from user_dir.analysis.gradients import (
    linear_score_gradients,
    norm_bound,
    paper_softmax_bound,
    rms_norm_beside,
    rms_norm_inside,
    softmax_bound,
    softmax_score_gradients,
)

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


def score_gradients(length: int, head_dim: int) -> Record:
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
        figure.check(statement, f"at most {bound:.3g}", f"{largest:.3g}", largest <= bound)
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
    figure.check(statement, "at most 10", f"{ratio:.3f}", ratio <= 10)


def bounds(length: int, head_dim: int) -> Record:
    """Equations 8 to 11, Proposition 3.1 and equation 59, each against what it bounds."""
    figure = Figure("Bounds of gradients", columns=2)
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
    figure.check("the same by q stays bounded", "no growth with t", found, last < 10 * first)


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
    figure.check("|∂L/∂s| ≤ c1 c2/2", "for all n, reached", f"largest {max(largest):.6f}", reached)
