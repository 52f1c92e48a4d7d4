"""All measures of one attention of a model on some sequences."""

import math
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from lab.figures.figure import Content
from user_dir.analysis import (
    AttentionInput,
    attention_matrix,
    entropy,
    log_normality,
    negative_share,
    normalized_rows,
    relative_entropy,
    row_temperature,
    spectral_gap,
    temperature,
    top_singular_value,
    zero_rows,
)
from user_dir.analysis.lognormal import lln_log_weights
from user_dir.attention.lln import LLNAttention
from user_dir.attention.lln_diag import LLNDiagAttention
from user_dir.attention.softmax import SoftmaxAttention

MEASURES = {
    "temperature": ("Temperature", "τ"),
    "entropy": ("Entropy", "H, bits"),
    "relative_entropy": ("Entropy", "H over log2 of the prefix's length"),
    "gap": ("Spectral gap", "γ"),
    "singular_value": ("Top singular value", "s₁"),
}
"""Title and unit of each."""
ENCODERS, LANGUAGE_MODELS = ("temperature", "entropy", "gap"), ("temperature", "relative_entropy")
"""The measures shown of each: a causal matrix has its diagonal as eigenvalues, so its gap says nothing."""
FIRST_ROW = 32  # of causal matrices in log-normality: earlier rows have too few entries


@dataclass(frozen=True)
class Measured:
    """An attention, its matrices `(B, H, N, N)`, and a number per sequence and head for each measure."""

    given: AttentionInput
    matrix: Tensor
    numbers: dict[str, Tensor]

    def mean_by_head(self, name: str) -> list[float] | None:
        """The mean over sequences, None where it is not defined."""
        return self.numbers[name].mean(0).tolist() if name in self.numbers else None

    def quartiles(self, name: str) -> tuple[float, float, float] | None:
        """Lower quartile, mean and upper quartile over sequences and heads."""
        if name not in self.numbers:
            return None
        values = self.numbers[name].flatten()
        low, high = values.quantile(torch.tensor([0.25, 0.75], dtype=values.dtype)).tolist()
        return low, values.mean().item(), high


def measure(given: AttentionInput, singular_values: bool = True) -> Measured:
    """Entropy, spectral gap and, where there are queries and keys, temperature; singular values: O(N^3)."""
    matrix = attention_matrix(given.module, given.x, given.padding_mask, causal=given.causal)
    numbers = {"entropy": entropy(matrix), "gap": spectral_gap(matrix)}
    if given.causal:
        numbers["relative_entropy"] = relative_entropy(matrix)
    if singular_values:
        numbers["singular_value"] = top_singular_value(matrix)
    if hasattr(given.module, "q_proj") and hasattr(given.module, "k_proj"):
        scores = scaled_scores(given)
        visible = torch.ones(scores.shape[-2:], dtype=torch.bool)
        visible = visible.tril() if given.causal else visible
        numbers["temperature"] = temperature(scores, visible)
        numbers["row_temperature"] = row_temperature(scores, visible)
    return Measured(given, matrix, numbers)


def queries_and_keys(given: AttentionInput) -> tuple[Tensor, Tensor]:
    """`(B, H, N, d)` each, float64, as they leave their maps."""
    heads = given.module.num_heads

    def split(projection: torch.nn.Linear) -> Tensor:
        return projection(given.x).double().unflatten(2, (heads, -1)).permute(1, 2, 0, 3)

    with torch.no_grad():
        return split(given.module.q_proj), split(given.module.k_proj)


def scaled_scores(given: AttentionInput) -> Tensor:
    """`q . k / sqrt(d)`, `(B, H, N, N)`."""
    q, k = queries_and_keys(given)
    return q @ k.mT / math.sqrt(q.shape[-1])


def log_weights(found: Measured) -> Tensor:
    """`ln P`, -inf where P is 0; from q and k for softmax and LLN, whose P underflows."""
    given = found.given
    plain_lln = isinstance(given.module, LLNAttention) and not isinstance(given.module, LLNDiagAttention)
    if not given.causal and (plain_lln or isinstance(given.module, SoftmaxAttention)):
        if not plain_lln:
            return scaled_scores(given).log_softmax(-1)
        q, k = queries_and_keys(given)
        alpha, beta = given.module.scale.average()
        return lln_log_weights(alpha * q, beta * k)
    return normalized_rows(found.matrix).log()


def log_normality_by_head(found: Measured) -> list[Content]:
    """The measures of log-normality of each head, and the share of entries that are zero and left out."""
    logs = log_weights(found)
    if found.given.causal:
        row = torch.arange(logs.shape[-1])
        logs = logs + torch.log(row[:, None] + 1.0)
        logs = logs[..., FIRST_ROW:, :]
        visible = row <= row[FIRST_ROW:, None]
    else:
        visible = torch.ones(logs.shape[-2:], dtype=torch.bool)
    records = []
    for head in range(logs.shape[1]):
        values = logs[:, head, visible]
        share = torch.isinf(values).double().mean().item()
        used = values[torch.isfinite(values)]
        usable = len(used) > 1 and used.min() < used.max()
        records.append({"zero_share": share, **(asdict(log_normality(used)) if usable else {})})
    return records


def shares(found: Measured) -> Content:
    """Ignored by the measures: the negative mass of the matrices and the rows that are zero."""
    return {
        "negative_share": negative_share(found.matrix).mean().item(),
        "zero_rows": zero_rows(found.matrix).double().mean().item(),
    }
