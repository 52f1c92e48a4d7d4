"""The shapes for which flash-linear-attention and Helion publish times, and the bytes they move at least."""

import csv
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.measuring import ENOUGH_MS, forward_and_backward, measure, peak
from benchmarks.operator_peers import implementations, own_layout
from benchmarks.operator_tables import BOTH, FORWARD
from benchmarks.run import write_tables
from pipeline.files import ROOT, write_json
from pipeline.provenance import environment
from pipeline.reports.tables import markdown_table, spread, where

PUBLISHED = ROOT / "results" / "peers" / "linear_attention_h100.csv"
TITLES = {"fla": "flash-linear-attention, published (H100)", "helion": "Helion, published (H100)"}
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
        both[name] = forward_and_backward(function, *inputs)
    yield FORWARD, forward
    yield BOTH, both


def anchor(options, wanted: list[Shape]) -> None:
    """Measure the published shapes; write anchor.json and anchor.md after each."""
    dtype, device = torch.bfloat16, options.device
    result = {
        "environment": environment(device),
        "peak": peak(device, dtype),
        "rounds": options.rounds,
        "records": [],
    }
    path = options.out / "anchor.json"
    for shape in wanted:
        for part, functions in calls(shape, device, dtype):
            print(f"{part}, {shape.title}", file=sys.stderr, flush=True)
            floor = shape.bytes(part, dtype.itemsize) / result["peak"]["GB/s"] / 1e6
            published = {name: ms for (which, name), ms in shape.published.items() if which == part}
            here = {"part": part, "shape": shape.title, "floor_ms": floor, "published_ms": published}
            for name, times in measure(functions, device, options.rounds, ENOUGH_MS).items():
                result["records"].append({**here, "name": name, "ms": times})
        write_json(path, result)
    write_tables(path, anchor_report(result))


def anchor_report(result: dict[str, Any]) -> str:
    """A table for each part: milliseconds, and how many times those of moving every tensor once."""
    record, records = result["environment"], result["records"]
    copy = f"{result['peak']['GB/s']:,.0f} GB/s of a copy"
    pieces = [f"{where(record)}; torch {record['versions']['torch']}, bfloat16; byte floor at {copy}"]
    for part in dict.fromkeys(r["part"] for r in records):
        rows = []
        for shape in dict.fromkeys(r["shape"] for r in records):
            here = [r for r in records if r["part"] == part and r["shape"] == shape]
            rows += _rows(shape, here)
        header = ["shape", part, "ms", "byte floor, ms", "times the floor"]
        pieces.append(markdown_table(header, rows))
    return "\n\n".join(pieces) + "\n"


def _rows(shape: str, records: list[dict[str, Any]]) -> list[list[str]]:
    floor = records[0]["floor_ms"]
    rows = []
    for r in records:
        times = f"{statistics.median(r['ms']) / floor:.2f}"
        rows.append([shape, r["name"], spread(r["ms"], "{:.3f}"), f"{floor:.3f}", times])
    for name, ms in records[0]["published_ms"].items():
        rows.append([shape, TITLES[name], f"{ms:.3f}", "–", "–"])  # of another machine
    return rows
