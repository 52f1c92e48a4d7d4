"""Perplexity, speed and memory by position of a stream whose state is carried: table and plot."""

from pathlib import Path
from typing import Any

from lab.methods import LANGUAGE_MODELS
from lab.publish.plots import Curve, plot_curves
from lab.publish.tables import markdown_table

MIB = 2**20


def markdown(result: dict[str, Any]) -> str:
    """Caption, and a table with a row for each bucket of positions."""
    rows = [
        [
            f"{bucket['first']:,} to {bucket['end'] - 1:,}",
            f"{bucket['tokens']:,}",
            f"{bucket['loss_nats_per_token']:.4f}",
            f"{bucket['perplexity_per_token']:.2f}",
            f"{bucket['tokens_per_second']:,.0f}",
            f"{bucket['state_bytes'] / MIB:.3f}",
            f"{bucket['memory_bytes'] / MIB:,.0f}",
        ]
        for bucket in result["buckets"]
    ]
    header = ["position", "tokens", "nats per token", "perplexity", "tokens/s", "state, MiB", "memory, MiB"]
    return f"{caption(result)}\n\n{markdown_table(header, rows)}\n"


def caption(result: dict[str, Any]) -> str:
    """What was evaluated, in a paragraph."""
    resets = ", reset at documents" if result["reset_at_documents"] else ""
    remark = f" Note: {result['remark']}." if result["remark"] else ""
    record = result["environment"]
    streams = f"{result['streams']:,} streams of up to" if result["streams"] > 1 else "one stream of"
    trained = "with carried state on" if result.get("trained_with_state") else "on"
    return (
        f"{result['architecture']}, {result['updates']:,} updates, trained {trained} samples of "
        f"{result['tokens_per_sample']:,}; {result['split']} split as {streams} "
        f"{result['longest']:,} tokens, {result['segment']:,} at a time{resets}; commit {record['commit']}, "
        f"{record['date']}.{remark}"
    )


def plot(result: dict[str, Any], path: Path) -> None:
    """Perplexity, tokens per second and memory against the position, each at the end of its bucket."""
    method = LANGUAGE_MODELS.get(result["architecture"])
    label, color = (method.label, method.color) if method else (result["architecture"], "#000000")
    buckets = result["buckets"]
    ends = [min(bucket["end"], result["longest"]) for bucket in buckets]
    measures = {
        "Perplexity per token": ("perplexity", "perplexity_per_token", 1),
        "Speed": ("tokens per second", "tokens_per_second", 1),
        "Memory in use": ("MiB", "memory_bytes", MIB),
    }
    panels = []
    for title, (unit, key, size) in measures.items():
        curve = Curve(label, color, ends, [bucket[key] / size for bucket in buckets])
        panels.append((title, "position, tokens", unit, [curve]))
    plot_curves(path, panels, note=caption(result))
