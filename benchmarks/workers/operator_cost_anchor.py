"""The shapes for which flash-linear-attention and Helion publish times, and the bytes they move at least."""

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.workers.operator_cost_peers import implementations, own_layout
from pipeline.files import ROOT
from pipeline.reports.costs.operator_goals import BOTH, FORWARD

PUBLISHED = ROOT / "results" / "peers" / "linear_attention_h100.csv"
TENSORS = {FORWARD: 4, BOTH: 11}
"""Of q's size, read or written at least: q, k, v, out; then q, k, v, the gradient of out and their three."""


@dataclass(frozen=True)
class Shape:
    """Of q, k and v, and the published milliseconds on an H100 in bfloat16 by (part, implementation)."""

    batch: int
    length: int
    heads: int
    dim: int
    published: dict[tuple[str, str], float]

    @property
    def title(self) -> str:
        """As its publishers name it."""
        return f"B{self.batch} T{self.length} H{self.heads} D{self.dim}"

    def bytes(self, part: str, size: int) -> int:
        """What the forward or both passes move at least, with numbers of `size` bytes."""
        return TENSORS[part] * self.batch * self.length * self.heads * self.dim * size

    def scaled(self, by: int) -> "Shape":
        """One row of the batch, two heads, `by` times shorter; of this nothing is published."""
        return Shape(1, max(1, self.length // by), 2, self.dim, {})


def shapes() -> list[Shape]:
    """Those of `PUBLISHED`."""
    with PUBLISHED.open(encoding="utf-8", newline="") as file:
        return [_shape(row) for row in csv.DictReader(file)]


def _shape(row: dict[str, str]) -> Shape:
    columns = {FORWARD: "forward", BOTH: "forward_backward"}
    published = {
        (part, name): float(row[f"{name}_{column}_ms"])
        for part, column in columns.items()
        for name in ("helion", "fla")
    }
    return Shape(*(int(row[x]) for x in ("batch", "length", "heads", "dim")), published)


def calls(shape: Shape, device: str, dtype: torch.dtype) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each part with its functions, by implementation; every one has inputs in its own layout."""
    size = (shape.batch, shape.heads, shape.length, shape.dim)
    q, k, v, grad = (torch.rand(size, device=device).to(dtype) for _ in range(4))
    forward, both = {}, {}
    for name, function in implementations(device, dtype, {}, shape.dim, quadratic=False).items():
        inputs = [own_layout(name, x) for x in (q, k, v, grad)]
        forward[name] = lambda f=function, x=inputs: f(*x[:3])
        both[name] = lambda f=function, x=inputs: _both(f, *x)
    yield FORWARD, forward
    yield BOTH, both


def _both(function, q, k, v, grad) -> None:
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    torch.autograd.grad(function(*leaves), leaves, grad)
