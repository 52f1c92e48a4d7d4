"""From the records of `attention_cost.py` to tables by length, a plot, and how memory grows."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pipeline.methods import Size
from pipeline.reports.costs.lm_cost import Cell, cell, measured_on
from pipeline.reports.plots import Curve, plot_curves
from pipeline.reports.tables import markdown_table
from pipeline.sequence_methods import SEQUENCE_METHODS, SequenceMethod

Results = dict[str, Any]
ROUNDS = ("reformer-1", "reformer-4", "reformer-8")
OPERATORS = {
    "softmax": SequenceMethod("softmax, weights kept", SEQUENCE_METHODS["softmax"].color, "", style="--"),
    "softmax-fused": SequenceMethod("softmax, fused", SEQUENCE_METHODS["softmax"].color, "softmax"),
    **{name: SEQUENCE_METHODS[name] for name in ("elu", *ROUNDS)},
}
"""By the name on the command line, in the order of the tables; no plan: weights are formed and kept."""

FROM = 2048  # where constant parts of the memory no longer count
GROWTH = dict.fromkeys(("elu", *ROUNDS), (1.6, 2.4)) | {"softmax": (3.5, 4.5)}
PAPER = (
    "Paper (Katharopoulos et al. 2020, Figure 1, no figures given; 11 GB of GPU memory): softmax reaches "
    "4,096, Reformer with 4 and 8 rounds 16,384; linear attention and Reformer are straight lines, linear "
    "attention below all others."
)


def samples(results: Results, length: int) -> int:
    """Sequences in a batch."""
    tokens = results["settings"]["tokens"]
    return tokens // length if tokens else 1


def seconds(results: Results, length: int, found: Cell) -> float:
    """Seconds per sequence, median."""
    return found.median / samples(results, length)


def memory(results: Results, length: int, found: Cell) -> float:
    """Peak MiB per sequence, above the inputs."""
    return max(found.peaks) / 2**20 / samples(results, length)


Value = Callable[[Results, int, Cell], float]


def _table(results: Results, title: str, value: Value, form: str) -> str:
    lengths = results["settings"]["lengths"]
    rows = []
    for name in results["settings"]["architectures"]:
        cells = [(at, cell(results, "training", name, at)) for at in lengths]
        shown = [
            "–" if c is None else form.format(value(results, at, c)) if c.status == "ok" else c.status
            for at, c in cells
        ]
        rows.append([OPERATORS[name].label, *shown])
    return f"{title}\n\n" + markdown_table(["", *(f"{at:,}" for at in lengths)], rows)


def growth(results: Results) -> list[str]:
    """Whether memory grows as the paper's figure says, for each method a line."""
    lines = []
    for name, (least, most) in GROWTH.items():
        ratios = memory_ratios(results, name)
        label = OPERATORS[name].label
        promise = f"{label}, peak memory at twice the length, from {FROM:,}: {least} to {most} times"
        if not ratios:
            lines.append(f"not measured: {promise}")
            continue
        met = "met" if all(least <= ratio <= most for ratio in ratios) else "NOT MET"
        lines.append(f"{met}: {promise}; measured {min(ratios):.2f} to {max(ratios):.2f}")
    return lines


def memory_ratios(results: Results, name: str) -> list[float]:
    """Memory at each length from `FROM` over that at half of it, where both were measured."""
    found = {}
    for at in results["settings"]["lengths"]:
        known = cell(results, "training", name, at)
        if at >= FROM and known is not None and known.status == "ok":
            found[at] = memory(results, at, known)
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
    parts = [
        caption(results),
        _table(results, "Seconds per sequence, median, by length:", seconds, "{:.3g}"),
        _table(results, "Peak memory per sequence above the inputs, MiB, by length:", memory, "{:,.0f}"),
        "\n".join(f"- {line}" for line in growth(results)),
        PAPER,
    ]
    return "\n\n".join(parts) + "\n"


def _curves(results: Results, value: Value) -> list[Curve]:
    curves = []
    for name in results["settings"]["architectures"]:
        known = [(at, cell(results, "training", name, at)) for at in results["settings"]["lengths"]]
        points = [(at, value(results, at, c)) for at, c in known if c is not None and c.status == "ok"]
        if points:
            look = OPERATORS[name]
            curves.append(Curve(look.label, look.color, *_columns(points), look.style))
    return curves


def _columns(points: Sequence[tuple[int, float]]) -> tuple[list[int], list[float]]:
    return [at for at, _ in points], [y for _, y in points]


def plot(results: Results, path: Path) -> None:
    """Time and memory per sequence against length, both axes logarithmic."""
    length = "length of a sequence, tokens"
    panels = [
        ("Time per sequence", length, "seconds", _curves(results, seconds)),
        ("Peak memory per sequence", length, "MiB", _curves(results, memory)),
    ]
    plot_curves(path, panels, note=caption(results), source="benchmarks/attention_cost.py")
