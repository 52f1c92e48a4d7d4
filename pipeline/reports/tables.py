"""Markdown tables, and figures as they appear in them."""

import statistics
from collections.abc import Iterable, Sequence
from typing import Any


def where(record: dict[str, Any], threads: int | None = None) -> str:
    """The GPU of an `environment`, or its processor and how many threads were used."""
    threads = threads or record["threads"]
    machine = record["hardware"]
    return machine.get("gpu") or f"{machine['cpu']}, {threads} thread{'s' if threads > 1 else ''}"


def spread(values: Sequence[float], format_value: str = "{:.2f}") -> str:
    """Median and range of `values`: "1.20 (1.10 to 1.40)", or one number if they print alike."""
    low, middle, high = (
        format_value.format(x) for x in (min(values), statistics.median(values), max(values))
    )
    return middle if low == high else f"{middle} ({low} to {high})"


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table, first column to the left, others to the right; no final newline."""
    rules = ["---", *["---:"] * (len(header) - 1)]
    return "\n".join("| " + " | ".join(row) + " |" for row in [header, rules, *rows])
