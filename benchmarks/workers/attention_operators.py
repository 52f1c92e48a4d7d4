"""Causal attentions alone, on random queries, keys and values (Katharopoulos et al. 2020, section 4.1.2)."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pipeline.methods import Size
from pipeline.reports.costs.attention_cost import OPERATORS
from user_dir.attention import build_attention

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


def materialised_softmax(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """`softmax(q k^T / sqrt(d)) v` for `(B, H, N, d)`, whose N x N weights are kept for the backward pass."""
    future = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).triu(1)
    scores = q @ k.mT * q.shape[-1] ** -0.5
    return scores.masked_fill(future, float("-inf")).softmax(dim=-1) @ v


class AttentionOperator:
    """An attention between queries, keys and values that are given, without the maps around it.

    Args:
        architecture: a name of `OPERATORS`.
        size: its `width` and `heads` are those of the queries.
        length: of the sequences.
        positions: the longest sequence, which decides how many buckets Reformer has.
        device: "cpu" or "cuda".
    """

    parameters = 0

    def __init__(self, architecture: str, size: Size, length: int, positions: int, device: str) -> None:
        self.size, self.device = size, device
        self.attend = self._attention(architecture, positions)

    def _attention(self, name: str, positions: int) -> Attend:
        method = OPERATORS[name]
        if not method.plan:
            return materialised_softmax
        options = {key.removeprefix("--reformer-"): int(value) for key, value in method.options.items()}
        width, heads = self.size.width, self.size.heads
        module = build_attention(method.plan, width, heads, causal=True, max_positions=positions, **options)
        module = module.to(self.device)
        if method.plan == "reformer":  # queries are keys
            return lambda q, k, v: module.attend(q, v, None)
        return lambda q, k, v: module.attend(q, k, v, None)

    def sample(self, rows: int, length: int) -> dict[str, Any]:
        """Queries, keys and values, `(rows, H, length, d)`, and the gradient of what comes out."""
        shape = (rows, self.size.heads, length, self.size.width // self.size.heads)
        q, k, v, grad = (torch.randn(shape, device=self.device) for _ in range(4))
        return {"inputs": (q, k, v), "grad": grad, "ntokens": rows * length}

    def train_step(self, sample: dict[str, Any]) -> None:
        """The attention and its gradients."""
        leaves = [x.requires_grad_() for x in sample["inputs"]]
        torch.autograd.grad(self.attend(*leaves), leaves, sample["grad"], allow_unused=True)
