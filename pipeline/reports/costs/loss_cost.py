"""From the records of `loss_cost.py` to tables."""

from collections.abc import Callable
from functools import partial
from typing import Any

from pipeline.reports.tables import markdown_table, spread, where

LABELS = {
    "products": "the three matrix products alone",
    "plain": "`cross_entropy`",
    "chunked": "`chunked_cross_entropy`",
    "fallback": "the same without PyTorch's operator",
    "liger": "Liger's kernel",
    "apple": "Apple's kernel",
}
GIB = 2**30


def markdown(result: dict[str, Any]) -> str:
    """The whole report."""
    losses = [r for r in result["records"] if r["kind"] == "losses"]
    updates = [r for r in result["records"] if r["kind"] == "update"]
    parts = [_losses(losses)] if losses else []
    parts += [_updates(updates)] if updates else []
    return "\n\n".join(parts) + "\n"


def _measured_on(records: list[dict]) -> str:
    last = records[-1]["environment"]
    runs = sorted({f"{r['environment']['date']} (commit {r['environment']['commit']})" for r in records})
    return f"{where(last)}, torch {last['versions']['torch']}, {' and '.join(runs)}."


def _losses(records: list[dict]) -> str:
    first, device = records[0], records[-1]["environment"]["device"]
    dtype = "bfloat16" if device == "cuda" else "float32"
    parts = [
        f"Forward and backward pass, {first['tokens']:,} tokens, width {first['width']}, {dtype}, "
        f"random numbers, losses in turns. {_measured_on(records)}"
    ]
    measures = {"Seconds": "seconds"}
    if device == "cpu":  # whose wall clock also counts what else the machine does
        measures = {"Seconds of CPU time, all threads together": "cpu_seconds", **measures}
    for title, key in measures.items():
        parts.append(_table(records, f"{title}, median (range), by vocabulary:", partial(_times, key=key)))
    title = "Peak memory above the weight, its gradient, the features and theirs, GiB, by vocabulary:"
    return "\n\n".join([*parts, _table(records, title, _peak)])


def _table(records: list[dict], title: str, show: Callable[[dict], str]) -> str:
    by_size = sorted(records, key=lambda r: r["vocabulary"])
    rows = [[LABELS[loss], *(show(r["found"][loss]) for r in by_size)] for loss in records[0]["losses"]]
    return f"{title}\n\n" + markdown_table(["", *(f"{r['vocabulary']:,}" for r in by_size)], rows)


def _times(found: dict, key: str) -> str:
    return spread(found[key]) if found["status"] == "ok" else found["status"]


def _peak(found: dict) -> str:
    return f"{found['peak_bytes'] / GIB:.2f}" if "peak_bytes" in found else "–"


def _updates(records: list[dict]) -> str:
    rows = []
    for r in records:
        if r["status"] != "ok":
            limit = f", limit {r['memory_limit'] / GIB:.1f}" if r["memory_limit"] else ""
            rows.append([f"`{r['criterion']}`", "–", "–", "–", r["status"] + limit])
            continue
        rows.append(
            [
                f"`{r['criterion']}`",
                f"{r['tokens'][-1]:,}",
                f"{r['seconds'][-1]:.1f}",
                f"{r['losses'][0]:.3f}",
                f"{r['whole_peak_bytes'] / GIB:.2f}",
            ]
        )
    first = records[0]
    header = [
        "",
        "tokens of the last",
        "its seconds",
        "loss of the first, bits",
        "peak of the process, GiB",
    ]
    return (
        f"Updates of `{first['config']}` on `{first['text']}`, dictionary padded to {first['vocabulary']:,}: "
        f"embedding, six layers, loss, Adam. {_measured_on(records)}\n\n{markdown_table(header, rows)}"
    )
