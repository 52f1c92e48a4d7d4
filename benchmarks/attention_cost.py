#!/usr/bin/env python3
"""Time and memory of causal attention and its gradients against length (Katharopoulos et al. 2020, Figure 1).

Softmax attention that keeps its N x N weights, as in 2020, the fused one of today, linear attention, and
Reformer's with 1, 4 and 8 rounds, at lengths from 512 to 65,536: 65,536 tokens per batch on a GPU, one
sequence on a CPU. Every attention and length runs in its own processes, which take turns; running out of
memory or time becomes a row. Results are saved after every case: run the same command again to resume. On
two cores it takes about half an hour; the machine should do nothing else.
"""

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

if not (find_spec("torch") and find_spec("benchmarks")):
    raise SystemExit("error: not this project's Python; run .venv/bin/python benchmarks/attention_cost.py")

import torch
from torch import Tensor

from benchmarks.models import SEQUENCE_METHODS, SequenceMethod, Size
from benchmarks.run import CostBenchmark
from benchmarks.worker import measure_steps
from lab.console import run_command
from lab.publish.costs import Cell, Results, curves, length_table, measured, measured_on
from lab.publish.plots import PALEST, plot_curves, tint

ROUNDS = ("reformer-1", "reformer-4", "reformer-8")
OPERATORS = {
    "softmax": SequenceMethod("softmax, weights kept", tint(SEQUENCE_METHODS["softmax"].color, PALEST)),
    "softmax-fused": SequenceMethod("softmax, fused", SEQUENCE_METHODS["softmax"].color, plan="softmax"),
    **{name: SEQUENCE_METHODS[name] for name in ("elu", *ROUNDS)},
}
"""By the name on the command line, in the order of the tables; no plan: weights are formed and kept."""
FULL = {"lengths": [2**n for n in range(9, 17)], "rounds": 2, "steps": 3}
QUICK = {"lengths": [64, 256], "rounds": 1, "steps": 1}
TOKENS = 65_536  # of a batch on a GPU
HEADS_OF_64 = Size(layers=0, width=512, heads=8, vocabulary=0)
TINY_HEADS = Size(layers=0, width=16, heads=2, vocabulary=0)
FROM = 2048  # where constant parts of the memory no longer count
GROWTH = dict.fromkeys(("elu", *ROUNDS), (1.6, 2.4)) | {"softmax": (3.5, 4.5)}
PAPER = (
    "Paper (Katharopoulos et al. 2020, Figure 1, no figures given; 11 GB of GPU memory): softmax reaches "
    "4,096, Reformer with 4 and 8 rounds 16,384; linear attention and Reformer are straight lines, linear "
    "attention below all others."
)
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


def materialised_softmax(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """`softmax(q k^T / sqrt(d)) v` for `(B, H, N, d)`, whose N x N weights are kept for the backward pass."""
    future = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).triu(1)
    scores = q @ k.mT * q.shape[-1] ** -0.5
    return scores.masked_fill(future, float("-inf")).softmax(dim=-1) @ v


class AttentionOperator:
    """An attention between queries, keys and values that are given, without the maps around it.

    Args: as for `LanguageModel`; `architecture` is a name of `OPERATORS`, and the longest of `positions`
    decides how many buckets Reformer has.
    """

    parameters = 0

    def __init__(self, architecture: str, size: Size, length: int, positions: int, device: str) -> None:
        self.size, self.device = size, device
        self.attend = self._attention(architecture, positions)

    def _attention(self, name: str, positions: int) -> Attend:
        from user_dir.attention import build_attention

        method = OPERATORS[name]
        if not method.plan:
            return materialised_softmax
        options = {key.removeprefix("reformer_"): value for key, value in method.settings.items()}
        width, heads = self.size.width, self.size.heads
        module = build_attention(method.plan, width, heads, causal=True, max_positions=positions, **options)
        module = module.to(self.device)
        if method.plan == "reformer":  # queries are keys
            return lambda q, k, v: module.attend(q, v, None)
        return lambda q, k, v: module.attend(q, k, v, None)

    def sample(self, rows: int, length: int) -> dict[str, Any]:
        """Queries, keys and values, `(rows, H, length, d)`, and the gradient of the output."""
        shape = (rows, self.size.heads, length, self.size.width // self.size.heads)
        q, k, v, grad = (torch.randn(shape, device=self.device) for _ in range(4))
        return {"inputs": (q, k, v), "grad": grad, "ntokens": rows * length}

    def train_step(self, sample: dict[str, Any]) -> None:
        """The attention and its gradients."""
        leaves = [x.requires_grad_() for x in sample["inputs"]]
        torch.autograd.grad(self.attend(*leaves), leaves, sample["grad"], allow_unused=True)


MEASURES = {"training": partial(measure_steps, build=AttentionOperator)}


def samples(results: Results, length: int) -> int:
    """Sequences in a batch."""
    tokens = results["settings"]["tokens"]
    return tokens // length if tokens else 1


def seconds(results: Results, found: Cell) -> float:
    """Seconds per sequence, median."""
    return found.median / samples(results, found.at)


def memory(results: Results, found: Cell) -> float:
    """Peak MiB per sequence, above the inputs."""
    return found.peak / samples(results, found.at)


def growth(results: Results) -> list[str]:
    """Whether memory grows as the paper's figure says, for each method a line."""
    lines = []
    for name, (least, most) in GROWTH.items():
        ratios = memory_ratios(results, name)
        what = f"{OPERATORS[name].label}, peak memory at twice the length, from {FROM:,}"
        promise = f"{what}: {least} to {most} times"
        if not ratios:
            lines.append(f"not measured: {promise}")
            continue
        met = "met" if all(least <= ratio <= most for ratio in ratios) else "NOT MET"
        lines.append(f"{met}: {promise}; measured {min(ratios):.2f} to {max(ratios):.2f}")
    return lines


ASKS = "How do time and memory of causal attention grow with the length of the sequence?"


def memory_ratios(results: Results, name: str) -> list[float]:
    """Memory at each length from `FROM`, over the memory at half the length, where both were measured."""
    found = {at: memory(results, c) for at, c in measured(results, name).items() if at >= FROM}
    return [value / found[at // 2] for at, value in found.items() if found.get(at // 2)]


def caption(results: Results) -> str:
    """One paragraph: sizes, batch, what is counted, machine, day."""
    settings = results["settings"]
    size, tokens = Size(**settings["size"]), settings["tokens"]
    batch = f"{tokens:,} tokens per batch, figures per sequence" if tokens else "one sequence per batch"
    return (
        f"Causal attention and its gradients, float32, {size.heads} heads of {size.width // size.heads}, "
        f"random queries, keys and values, {batch}; Reformer is the strictly causal form in PyTorch, with 64 "
        "tokens per chunk. The paper's softmax keeps its N × N weights; the fused kernel's memory is linear "
        f"in N. The paper does not state heads and width. {measured_on(results)}"
    )


def markdown(results: Results) -> str:
    """The whole report."""
    time_title = "Seconds per sequence, median, by length:"
    memory_title = "Peak memory per sequence above the inputs, MiB, by length:"
    parts = [
        caption(results),
        length_table(results, time_title, OPERATORS, lambda c: f"{seconds(results, c):.3g}"),
        length_table(results, memory_title, OPERATORS, lambda c: f"{memory(results, c):,.0f}"),
        "\n".join(f"- {line}" for line in growth(results)),
        PAPER,
    ]
    return "\n\n".join(parts) + "\n"


def plot(results: Results, path: Path) -> None:
    """Time and memory per sequence against length, both axes logarithmic."""
    length, names = "length of a sequence, tokens", results["settings"]["architectures"]
    time, peak = (curves(results, OPERATORS, names, partial(value, results)) for value in (seconds, memory))
    panels = [
        ("Time per sequence", length, "seconds", time),
        ("Peak memory per sequence", length, "MiB", peak),
    ]
    plot_curves(path, panels, asks=ASKS, note=caption(results))


def settings_for(device: str, quick: bool) -> dict[str, Any]:
    """The settings of a measurement. No `tokens`: one sequence per batch."""
    size, plan = (TINY_HEADS, QUICK) if quick else (HEADS_OF_64, FULL)
    return {"size": size.as_dict(), **plan, "tokens": TOKENS if device == "cuda" else None}


BENCHMARK = CostBenchmark(__file__, __doc__, OPERATORS, 150, settings_for, markdown, plot)
main = BENCHMARK.main

if __name__ == "__main__":
    run_command(main)
