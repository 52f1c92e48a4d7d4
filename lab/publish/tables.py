"""Markdown tables, and figures as they appear in them."""

import statistics
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, TypeVar

from lab.console import number_of

Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)


def where(record: dict[str, Any], threads: int | None = None) -> str:
    """The GPU of an `environment`, or its processor and how many threads were used."""
    threads = threads or record["threads"]
    machine = record["hardware"]
    return machine.get("gpu") or f"{machine['cpu']}, {number_of(threads, 'threads')}"


def ran_on(sessions: Sequence[dict[str, Any]], threads: int | None = None) -> str:
    """Machine, versions, dates and commits of the `environment` of each session, in one sentence."""
    last = sessions[-1]
    runs = sorted({f"{s['date']} (commit {s['commit']})" for s in sessions})
    return f"{where(last, threads)}, torch {last['versions']['torch']}, {' and '.join(runs)}."


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """The items by `key`, in their order."""
    found: dict[Key, list[Item]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found


def shown(value: float | None, form: str) -> str:
    """A figure as text; a dash for none."""
    return "–" if value is None else format(value, form)


def spread(values: Sequence[float | None], format_value: str = "{:.2f}") -> str:
    """Median and range of `values`: "1.20 (1.10 to 1.40)", or one number if they print alike.

    Those that were not measured do not count; a dash if none was.
    """
    known = [value for value in values if value is not None]
    if not known:
        return "–"
    low, middle, high = (format_value.format(x) for x in (min(known), statistics.median(known), max(known)))
    return middle if low == high else f"{middle} ({low} to {high})"


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]], figures: bool = True) -> str:
    """A Markdown table without a final newline; `figures` are to the right, after the first column."""
    rules = ["---", *["---:" if figures else "---"] * (len(header) - 1)]
    lines = [[cell.replace("|", r"\|") for cell in row] for row in [header, rules, *rows]]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
