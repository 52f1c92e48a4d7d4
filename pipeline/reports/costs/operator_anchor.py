"""The table of anchor.json: times at published shapes, against the bytes and the published times."""

import statistics
from typing import Any

from pipeline.reports.tables import markdown_table, spread, where

TITLES = {"fla": "flash-linear-attention, published (H100)", "helion": "Helion, published (H100)"}


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
    rows = [[shape, r["name"], spread(r["ms"], "{:.3f}"), *_against(r["ms"], floor)] for r in records]
    for name, ms in records[0]["published_ms"].items():
        rows.append([shape, TITLES[name], f"{ms:.3f}", "–", "–"])  # of another machine
    return rows


def _against(times: list[float], floor: float) -> list[str]:
    return [f"{floor:.3f}", f"{statistics.median(times) / floor:.2f}"]
