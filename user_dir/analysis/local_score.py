"""How much attention stays near: locally accumulated scores (TransNormer, Fig. 2a and Appendix F).

`local_score` is the definition in the paper's text. `appendix_f_curve` reproduces the code of its Appendix F,
which measures something else: the smallest width at which a row reaches a score, with a width two too large
from the first step on, and a first column that only counts in its own row.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

THRESHOLDS = 100


def window_widths(length: int, ratios: Sequence[float]) -> list[int]:
    """`max(1, round(r N))` for each ratio r."""
    return [max(1, round(ratio * length)) for ratio in ratios]


def local_score(matrix: Tensor, widths: Sequence[int]) -> Tensor:
    """The mean over rows i of the sum of `P_ij` over a window of each width around i.

    A window of w positions has w // 2 to the left of i and (w - 1) // 2 to the right, and is moved inside
    [0, N) at the borders. Uniform attention gives w / N, the identity 1.

    Args:
        matrix: `(..., N, N)`, rows that sum to 1 (`normalized_rows`); rows of zeros count as 0.
        widths: from 1 to N.

    Returns:
        `(..., len(widths))`. O(N) a width after prefix sums, O(N^2).
    """
    length = matrix.shape[-1]
    row = torch.arange(length, device=matrix.device)
    starts = [(row - width // 2).clamp(0, length - width) for width in widths]
    ends = [start + width for start, width in zip(starts, widths, strict=True)]
    return _window_means(matrix, starts, ends)


def causal_local_score(matrix: Tensor, ratios: Sequence[float]) -> Tensor:
    """The same for causal matrices: the window is the last `ceil(r (i + 1))` visible positions of row i.

    Uniform attention lies on the diagonal, up to that rounding. Returns `(..., len(ratios))`.
    """
    row = torch.arange(matrix.shape[-1], device=matrix.device)
    starts = [row + 1 - torch.ceil(ratio * (row + 1) - 1e-9).long().clamp(min=1) for ratio in ratios]
    return _window_means(matrix, starts, [row + 1] * len(starts))


def _window_means(matrix: Tensor, starts: list[Tensor], ends: list[Tensor]) -> Tensor:
    """The mean over rows of the sums from `starts` to `ends`, `(N,)` each."""
    sums = torch.nn.functional.pad(matrix.double().cumsum(-1), (1, 0))
    row = torch.arange(matrix.shape[-1], device=matrix.device)
    pairs = zip(starts, ends, strict=True)
    return torch.stack([(sums[..., row, end] - sums[..., row, start]).mean(-1) for start, end in pairs], -1)


def appendix_f_curve(weights: Tensor) -> tuple[Tensor, Tensor]:
    """`get_curve` of TransNormer's Appendix F for one matrix `(n, m)`, its edge cases included.

    Args:
        weights: rows of attention weights; for block attention in the authors' form N x C.

    Returns:
        x and y, `(100,)`: for each score y from 0 to 1 the mean over rows of the smallest share of the
        columns that reaches it. O(n m) steps of Python: 0.3 s for 512 x 512.
    """
    thresholds = torch.linspace(0, 1, THRESHOLDS, dtype=torch.float64)
    rows, columns = weights.shape
    total = torch.zeros(THRESHOLDS, dtype=torch.float64)
    targets = thresholds.tolist()
    for row, entries in enumerate(weights.double().tolist()):
        total += torch.tensor(_widths(entries, row % columns, targets), dtype=torch.float64)
    return total / (rows * columns), thresholds


def _widths(entries: list[float], centre: int, targets: list[float]) -> list[int]:
    """The width at which a row reaches each target; all columns for those it does not."""
    columns = len(entries)
    found = [0] + [columns] * (len(targets) - 1)
    score, width, left, right, target = entries[centre], 1, centre - 1, centre + 1, 1
    to_the_left = True
    while width < columns and target < len(targets):
        if score >= targets[target]:
            found[target] = width
            target += 1
            continue
        if to_the_left:
            if left != 0:  # -1 in the first row, where the last column is added
                score += entries[left]
                left = max(0, left - 1)
        elif right != columns:
            score += entries[right]
            right = min(columns, right + 1)
        to_the_left = not to_the_left
        width = min(right - left + 1, columns)
    return found
