"""From the records of `roberta_cost.py` to tables beside the paper's, a plot and verdicts."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from pipeline.methods import (
    ENCODER_PANELS,
    ENCODERS,
    MASKED_PART,
    SOFTMAX,
    Method,
    Size,
    groups,
    performer_note,
)
from pipeline.papers import read_table
from pipeline.reports.costs.lm_cost import Cell, Verdict, cell, measured_on
from pipeline.reports.plots import Curve, plot_curves
from pipeline.reports.tables import markdown_table, spread

LONG, MOST_PER_DOUBLING = 4096, 2.2
OUT_OF_MEMORY = "OOM"

Value = Callable[[Cell], float]


def look(architecture: str) -> Method:
    """What to call an encoder and how to draw it, by fairseq's name of it."""
    return ENCODERS[architecture.removeprefix("roberta_")]


def seconds(c: Cell) -> float:
    """The median time of a training step."""
    return c.median


def peak(c: Cell) -> float:
    """The largest peak memory of a training step, in MiB."""
    return max(c.peaks) / 2**20


def _shown(c: Cell | None, show: Callable[[Cell], str], limit: float) -> str:
    if c is None:
        return "–"
    words = {"ok": lambda: show(c), "out of memory": lambda: OUT_OF_MEMORY}
    return words.get(c.status, lambda: f"over {limit:g} s" if c.status == "time limit" else c.status)()


def measured_table(results: dict[str, Any], show: Callable[[Cell], str]) -> str:
    """One row an architecture, one column a length."""
    settings = results["settings"]
    rows = [
        [
            look(name).label,
            *(
                _shown(cell(results, "training", name, n), show, settings["time_limit"])
                for n in settings["lengths"]
            ),
        ]
        for name in settings["architectures"]
    ]
    return markdown_table(["measured here", *(f"{n:,}" for n in settings["lengths"])], rows)


def paper_table(metric: str) -> str:
    """The paper's rows of `metric`, "sec_per_it" or "memory_gb"."""
    lines = [line for line in read_table("lln_02_roberta_cost") if line["metric"] == metric]
    lengths = [key for key in lines[0] if key.isdigit()]
    rows = [[line["method"], *(line[n] for n in lengths)] for line in lines]
    return markdown_table(["paper, Table 2", *(f"{int(n):,}" for n in lengths)], rows)


def caption(results: dict[str, Any]) -> str:
    """One paragraph: model, batch, machine, versions, day."""
    size = Size(**results["settings"]["size"])
    return (
        f"RoBERTa encoder of {size}; float32, dropout 0.1 (also of attention weights, "
        f"where there are any); one row of random tokens per batch, {MASKED_PART:.0%} of them masked; "
        "forward, backward and Adam; every architecture and length in processes of its own, taking turns; "
        "timed with freed memory kept by the process. "
        f"{measured_on(results)}"
    )


def differences(results: dict[str, Any]) -> str:
    """How the setting differs from the paper's, and what the words in the tables mean."""
    limit = results["settings"]["time_limit"]
    return (
        "The paper (Nahshan et al. 2024, Table 2) trains RoBERTa-base at batch 1 on a GPU and gives the "
        "GPU's whole memory in GB; memory here is what a step needs at its peak above parameters, optimizer "
        "state (together 12 bytes a parameter) and libraries. Compare how columns grow and how rows relate, "
        f'not single figures, where size or device differ. "{OUT_OF_MEMORY}": memory ran out; "over '
        f'{limit:g} s": the process that should have built the model, warmed up and timed a step was ended.'
    )


def tables(results: dict[str, Any]) -> str:
    """Time and memory against length, measured and as the paper has them, in Markdown."""
    parts = [
        "Seconds per training step, median (range), by length:",
        measured_table(results, lambda c: spread(c.seconds, "{:.3g}")),
        paper_table("sec_per_it"),
        "Peak memory of a training step, MiB here and GB in the paper, by length:",
        measured_table(results, lambda c: f"{peak(c):,.0f}"),
        paper_table("memory_gb"),
    ]
    return "\n\n".join(parts)


def verdicts(results: dict[str, Any]) -> dict[str, list[Verdict]]:
    """Whether linear encoders cost less than softmax on long sequences, and in proportion to the length."""
    return {
        name: [
            _against_softmax(results, name, "time", seconds),
            _against_softmax(results, name, "peak memory", peak),
            _per_doubling(results, name),
        ]
        for name in results["settings"]["architectures"]
        if not look(name).quadratic
    }


def verdict_table(results: dict[str, Any]) -> str:
    """What is promised of each encoder but the quadratic ones, and what was measured, in Markdown."""
    found = verdicts(results)
    promises = [f"{v.promise}: at most {v.most:g}" for v in next(iter(found.values()), [])]
    rows = [[look(name).label, *(v.short() for v in row)] for name, row in found.items()]
    return markdown_table(["", *promises], rows)


def _measured(results: dict[str, Any], name: str) -> dict[int, Cell]:
    """The lengths at which `name` could be measured."""
    cells = {n: cell(results, "training", name, n) for n in sorted(results["settings"]["lengths"])}
    return {n: c for n, c in cells.items() if c is not None and c.status == "ok"}


def _against_softmax(results: dict[str, Any], name: str, what: str, value: Value) -> Verdict:
    ours, theirs = _measured(results, name), _measured(results, ENCODERS[SOFTMAX].encoder_architecture)
    ratios = {n: value(ours[n]) / value(theirs[n]) for n in ours if n >= LONG and n in theirs}
    promise = f"largest {what} over softmax's, from {LONG:,} on"
    return Verdict(promise, _largest(ratios), 1.0)


def _per_doubling(results: dict[str, Any], name: str) -> Verdict:
    cells = _measured(results, name)
    pairs = [(a, b) for a, b in pairwise(cells) if b == 2 * a]
    ratios = {b: seconds(cells[b]) / seconds(cells[a]) for a, b in pairs}
    return Verdict("largest growth of time when the length doubles", _largest(ratios), MOST_PER_DOUBLING)


def _largest(ratios: dict[int, float]) -> float | None:
    return max(ratios.values(), default=None)


def markdown(results: dict[str, Any]) -> str:
    """The whole report."""
    parts = [caption(results), tables(results), differences(results), verdict_table(results)]
    parts += performer_note(results["settings"]["architectures"])
    return "\n\n".join(parts) + "\n"


def _curves(results: dict[str, Any], names: list[str], value: Value) -> list[Curve]:
    curves = []
    for name in names:
        points = [(n, value(c)) for n, c in _measured(results, name).items()]
        if points:
            curves.append(Curve(look(name).label, look(name).color, *zip(*points, strict=True)))
    return curves


def plot(results: dict[str, Any], path: Path) -> None:
    """Time and peak memory of a training step in one PNG, log axes; a row for every group of encoders."""
    length, panels = "length of the sequence, tokens", []
    known = {
        title: [ENCODERS[name].encoder_architecture for name in names]
        for title, names in ENCODER_PANELS.items()
    }
    for title, names in groups(results["settings"]["architectures"], known).items():
        panels += [
            (f"Time of a training step{title}", length, "seconds", _curves(results, names, seconds)),
            (f"Peak memory of a training step{title}", length, "MiB", _curves(results, names, peak)),
        ]
    plot_curves(path, panels, columns=2, note=caption(results))
